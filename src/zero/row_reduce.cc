#include "zero/row_reduce.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "kernels/collective/combine.h"
#include "ops/elementwise.h"
#include "tensor/transfer.h"

namespace ds::zero {
namespace {

constexpr int64_t kGrain = 64;  // rows per piece of work

float widened(float x) { return x; }
float widened(bfloat16 x) { return to_float(x); }
float widened(float16 x) { return to_float(x); }

}  // namespace

// Those with a number that is not zero, in ascending order.
std::vector<int32_t> RowReduce::rows_of(const Tensor& matrix) const {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  const float* const values = matrix.data<float>();
  std::vector<char> touched(static_cast<size_t>(rows));
  ctx_.pool->for_range(rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const first = values + row * columns;
      const bool any = std::any_of(first, first + columns, [](float x) { return x != 0; });
      touched[static_cast<size_t>(row)] = any ? 1 : 0;
    }
  });
  std::vector<int32_t> out;
  for (int64_t row = 0; row < rows; ++row) {
    if (touched[static_cast<size_t>(row)]) out.push_back(static_cast<int32_t>(row));
  }
  return out;
}

std::vector<int64_t> RowReduce::counts_of_ranks(int64_t own, int64_t rows,
                                                const std::string& name) const {
  const Tensor mine = ctx_.workspace(DType::kInt64, {1});
  const Tensor all = ctx_.workspace(DType::kInt64, {ranks_.size});
  *mine.data<int64_t>() = own;
  ranks_->all_gather(all, mine, {.label = name, .blocking = true})->wait();
  std::vector<int64_t> counts(all.data<int64_t>(), all.data<int64_t>() + all.elements());
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    DS_CHECK(counts[rank] >= 0 && counts[rank] <= rows, Code::kComm, "rank ", rank, " has ",
             counts[rank], " rows of the gradient of ", printable(name), ", which has ", rows);
  }
  return counts;
}

Tensor RowReduce::gather(const Tensor& own, const std::vector<int64_t>& counts,
                         const std::string& name) const {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const Tensor all = Tensor::empty(ctx_.device, own.dtype(), {total}, MemoryTag::kCommunication);
  ranks_->all_gather_v(all, own, counts, {.label = name, .blocking = true})->wait();
  return all;
}

// The values of some rows in the type that travels, one after another.
Tensor RowReduce::packed(const Tensor& matrix, const std::vector<int32_t>& rows) const {
  const int64_t columns = matrix.size(1), count = std::ssize(rows);
  const Tensor dense =
      Tensor::empty(ctx_.device, DType::kFloat32, {count * columns}, MemoryTag::kCommunication);
  ctx_.pool->for_range(count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(matrix.data<float>() + rows[static_cast<size_t>(i)] * columns, columns,
                  dense.data<float>() + i * columns);
    }
  });
  if (comm_dtype_ == DType::kFloat32) return dense;
  Tensor rounded =
      Tensor::empty(ctx_.device, comm_dtype_, dense.shape(), MemoryTag::kCommunication);
  ops::cast(ctx_, dense, rounded);
  return rounded;
}

// Ranks without a row have zeros there, which add nothing; what is left is what a reduction of
// everything computes. The result is made in the place of a row's first values.
template <class T>
void RowReduce::combine(const std::vector<Source>& sources, Tensor& values, Tensor& matrix) const {
  const int64_t columns = matrix.size(1);
  std::vector<size_t> firsts;  // of each row, and one beyond
  for (size_t i = 0; i < sources.size(); ++i) {
    if (i == 0 || sources[i].row != sources[i - 1].row) firsts.push_back(i);
  }
  firsts.push_back(sources.size());
  T* const all = values.data<T>();
  ctx_.pool->for_range(std::ssize(firsts) - 1, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<const T*> inputs;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      inputs.clear();
      for (size_t k = firsts[i]; k < firsts[i + 1]; ++k) inputs.push_back(all + sources[k].at);
      T* const out = all + sources[firsts[i]].at;
      kernels::Combination<T> task;
      task.inputs = inputs.data();
      task.input_count = static_cast<int>(inputs.size());
      task.outputs = &out;
      task.output_count = 1;
      if (op_ == ReduceOp::kAverage) task.divisor = static_cast<float>(ranks_.size);
      kernels::combine(task, columns);
      float* const to = matrix.data<float>() + sources[firsts[i]].row * columns;
      std::transform(out, out + columns, to, [](T x) { return widened(x); });
    }
  });
}

bool RowReduce::reduce(Tensor& matrix, const std::string& name) {
  if (!on_host(matrix)) return false;
  const int64_t columns = matrix.size(1);
  const std::vector<int32_t> own = rows_of(matrix);
  std::vector<int64_t> counts = counts_of_ranks(std::ssize(own), matrix.size(0), name);
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (total > matrix.size(0)) return false;
  if (total == 0) return true;
  const Tensor numbers = ctx_.workspace(DType::kInt32, {std::ssize(own)});
  std::copy(own.begin(), own.end(), numbers.data<int32_t>());
  const Tensor rows = gather(numbers, counts, name);
  for (int64_t& count : counts) count *= columns;
  Tensor values = gather(packed(matrix, own), counts, name);
  std::vector<Source> sources;
  for (int64_t i = 0; i < total; ++i) {
    const int32_t row = rows.data<int32_t>()[i];
    DS_CHECK(row >= 0 && row < matrix.size(0), Code::kComm, "a rank sent row ", row,
             " of the gradient of ", printable(name), ", which has ", matrix.size(0), " rows");
    sources.push_back({row, i * columns});
  }
  std::stable_sort(sources.begin(), sources.end(),
                   [](const Source& a, const Source& b) { return a.row < b.row; });
  if (comm_dtype_ == DType::kFloat32) {
    combine<float>(sources, values, matrix);
  } else if (comm_dtype_ == DType::kBFloat16) {
    combine<bfloat16>(sources, values, matrix);
  } else {
    combine<float16>(sources, values, matrix);
  }
  return true;
}

}  // namespace ds::zero
