// Rows for table look-up and its gradient.
#include <algorithm>

#include "kernels/case_util.h"
#include "kernels/embedding/embedding.h"
#include "ops/embedding.h"

namespace ds::testing::embedding_rows {
namespace {

namespace ref = kernels::reference;

// The table's gradient and the errors it may have: every id adds one rounding to its row.
void check_backward(CaseResult& result, const OpContext& ctx, Random& random, DType dtype,
                    const Tensor& ids, int64_t vocabulary, int64_t cols, int64_t padding = -1) {
  const int64_t n = ids.elements();
  const Tensor dy = random_tensor(random, dtype, {n, cols});
  Tensor dtable = random_tensor(random, DType::kFloat32, {vocabulary, cols});
  std::vector<double> expected = doubles(dtable), scale = expected;
  std::vector<double> magnitudes = doubles(dy), counts(static_cast<size_t>(vocabulary));
  const auto* id = ids.data<int32_t>();
  ref::embedding_backward(id, magnitudes.data(), n, cols, padding, expected.data());
  for (double& v : magnitudes) v = std::abs(v);
  for (double& v : scale) v = std::abs(v);
  ref::embedding_backward(id, magnitudes.data(), n, cols, padding, scale.data());
  for (int64_t i = 0; i < n; ++i) ++counts[static_cast<size_t>(id[i])];
  const double most = *std::ranges::max_element(counts);
  ops::embedding_backward(ctx, ids, dy, dtable, padding);
  compare(result, "dtable", dtable, expected, {0x1p-24 * most, 0}, scale);
}

OpCase look_up(DType dtype, int64_t n, int64_t vocabulary, int64_t cols) {
  OpCase row;
  row.name = str_cat("embedding/", type_name(dtype), "/", n, "of", vocabulary, "x", cols);
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const int64_t contexts = 1 + n / 3;
    const Tensor table = random_tensor(random, dtype, {vocabulary, cols});
    const Tensor positions = random_tensor(random, dtype, {contexts, cols});
    const Tensor ids = random_ints(random, {n}, 0, static_cast<int32_t>(vocabulary - 1));
    const Tensor places = random_ints(random, {n}, 0, static_cast<int32_t>(contexts - 1));
    const std::vector<double> tv = doubles(table), pv = doubles(positions);
    std::vector<double> expected(static_cast<size_t>(n * cols));
    ref::embedding(ids.data<int32_t>(), tv.data(), nullptr, nullptr, n, cols, expected.data());
    Tensor y = guarded_tensor(dtype, {n, cols});
    ops::embedding(ctx, ids, table, {}, {}, y);
    compare(result, "rows", y, expected, {});
    ref::embedding(ids.data<int32_t>(), tv.data(), places.data<int32_t>(), pv.data(), n, cols,
                   expected.data());
    y = guarded_tensor(dtype, {n, cols});
    ops::embedding(ctx, ids, table, places, positions, y);
    compare(result, "rows + positions", y, expected, {unit_roundoff(dtype) + 0x1p-23, 0});
    check_backward(result, ctx, random, dtype, ids, vocabulary, cols);
    return result;
  };
  if (dtype == DType::kFloat32 && n * cols > 0 && n * cols < 200) {
    row.gradient = [=](const OpContext& ctx, uint64_t seed) {
      Random random(seed);
      CaseResult result;
      const Tensor table = random_tensor(random, dtype, {vocabulary, cols});
      const Tensor ids = random_ints(random, {n}, 0, static_cast<int32_t>(vocabulary - 1));
      const Tensor dy = random_tensor(random, dtype, {n, cols});
      Tensor dtable = filled_tensor(dtype, {vocabulary, cols}, 0);
      ops::embedding_backward(ctx, ids, dy, dtable);
      const std::vector<double> weights = doubles(dy);
      const auto objective = [&](const std::vector<double>& values) {
        std::vector<double> y(weights.size());
        ref::embedding(ids.data<int32_t>(), values.data(), nullptr, nullptr, n, cols, y.data());
        return weighted_sum(weights, y);
      };
      compare_gradient(result, "dtable", dtable, doubles(table), objective, {3e-6, 0});
      return result;
    };
  }
  return row;
}

// A long run of few ids, every row of a table once, and ids of three bytes.
OpCase repeated(DType dtype) {
  OpCase row;
  row.name = str_cat("embedding_repeated/", type_name(dtype));
  row.check = [=](const OpContext& ctx, uint64_t seed) {
    Random random(seed);
    CaseResult result;
    const Tensor few = random_ints(random, {3000}, 1, 2);
    check_backward(result, ctx, random, dtype, few, 4, 259);
    check_backward(result, ctx, random, dtype, few, 4, 259, 1);
    const Tensor all = guarded_tensor(DType::kInt32, {500});
    for (int32_t i = 0; i < 500; ++i) all.data<int32_t>()[i] = 499 - i;
    check_backward(result, ctx, random, dtype, all, 500, 130);
    const Tensor wide = random_ints(random, {5000}, 0, 69999);
    check_backward(result, ctx, random, dtype, wide, 70000, 2);
    return result;
  };
  return row;
}

std::vector<OpCase> bench_cases(DType dtype) {
  constexpr int64_t kRows = 4096, kVocabulary = 16384, kCols = 768;
  const double row_bytes = static_cast<double>(kRows * kCols);
  const auto inputs = [=](const OpContext& ctx) {
    Random random(7);
    Tensor ids = Tensor::empty(ctx.device, DType::kInt32, {kRows}, MemoryTag::kOther);
    for (int64_t i = 0; i < kRows; ++i) {
      ids.data<int32_t>()[i] = static_cast<int32_t>(random() % kVocabulary);
    }
    return ids;
  };
  OpCase forward, backward;
  forward.name = str_cat("embedding/", type_name(dtype), "/4096x768");
  forward.bytes = 3 * row_bytes * static_cast<double>(dtype_size(dtype));
  forward.prepare = [=](const OpContext& ctx) -> std::function<void()> {
    const Tensor ids = inputs(ctx), table = bench_tensor(ctx, dtype, {kVocabulary, kCols});
    const Tensor places = bench_tensor(ctx, DType::kInt32, {kRows});
    for (int64_t i = 0; i < kRows; ++i) places.data<int32_t>()[i] = static_cast<int32_t>(i % 1024);
    const Tensor positions = bench_tensor(ctx, dtype, {1024, kCols});
    Tensor y = bench_tensor(ctx, dtype, {kRows, kCols});
    return [=]() mutable { ops::embedding(ctx, ids, table, places, positions, y); };
  };
  backward.name = str_cat("embedding_backward/", type_name(dtype), "/4096x768");
  backward.bytes = row_bytes * (8 + static_cast<double>(dtype_size(dtype)));
  backward.prepare = [=](const OpContext& ctx) -> std::function<void()> {
    const Tensor ids = inputs(ctx), dy = bench_tensor(ctx, dtype, {kRows, kCols});
    Tensor dtable = bench_tensor(ctx, DType::kFloat32, {kVocabulary, kCols});
    return [=]() mutable { ops::embedding_backward(ctx, ids, dy, dtable); };
  };
  return {forward, backward};
}

}  // namespace

std::vector<OpCase> cases() {
  std::vector<OpCase> rows;
  for (const DType dtype : kFloatTypes) {
    rows.push_back(look_up(dtype, 0, 3, 4));
    rows.push_back(look_up(dtype, 1, 1, 1));
    rows.push_back(look_up(dtype, 7, 5, 3));
    rows.push_back(look_up(dtype, 11, 4, 17));
    rows.push_back(look_up(dtype, 33, 11, 129));
    rows.push_back(look_up(dtype, 257, 40, 768));
    rows.push_back(repeated(dtype));
    for (OpCase& row : bench_cases(dtype)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace ds::testing::embedding_rows
