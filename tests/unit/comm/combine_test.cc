// The kernels of collectives on every instruction set that they are compiled for and this machine
// has: all element types, odd sizes and alignments, cached and streaming stores, running results.
#include "kernels/collective/combine.h"

#include <gtest/gtest.h>

#include "fresh_seed.h"
#include "kernels/simd_targets.h"

#include <hwy/highway.h>

#include "unit/comm/support.h"

namespace ds::testing {
namespace {

class Combine : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// Memory of n elements at an odd place.
template <class T>
struct Buffer {
  explicit Buffer(int64_t n, size_t skew) : memory(static_cast<size_t>(n) + 64), offset(skew) {}
  T* data() { return memory.data() + offset; }
  std::vector<T> memory;
  size_t offset;
};

template <class T>
void check(DType dtype, ReduceOp op, int64_t n, size_t skew, bool stream, int count,
           bool interrupted) {
  std::vector<std::vector<std::byte>> inputs;
  std::vector<Buffer<T>> buffers;
  for (int i = 0; i < count; ++i) {
    inputs.push_back(random_bytes(dtype, n, ds::run_seed() + static_cast<uint64_t>(i) * 977));
    buffers.emplace_back(n, (skew + static_cast<size_t>(i)) % 9);
    if (n > 0) std::memcpy(buffers.back().data(), inputs.back().data(), inputs.back().size());
  }
  const auto expected = reduced(dtype, inputs, op, count);
  Buffer<T> first(n, skew), second(n, skew);
  std::vector<const T*> in;
  for (Buffer<T>& buffer : buffers) in.push_back(buffer.data());
  T* const out[] = {first.data(), second.data()};
  kernels::Combination<T> task;
  task.op = op == ReduceOp::kMin   ? kernels::CombineOp::kMin
            : op == ReduceOp::kMax ? kernels::CombineOp::kMax
                                   : kernels::CombineOp::kSum;
  task.inputs = in.data();
  task.input_count = count;
  std::vector<kernels::Accumulator<T>> partial(static_cast<size_t>(n) + 1);
  if (interrupted) {  // the first inputs into a running result, the rest on top of it
    task.input_count = count / 2;
    task.partial = partial.data();
    kernels::combine(task, n);
    task.partial = nullptr;
    task.start = partial.data();
    task.inputs += count / 2;
    task.input_count = count - count / 2;
  }
  if (op == ReduceOp::kAverage) task.divisor = static_cast<kernels::Accumulator<T>>(count);
  task.outputs = out;
  task.output_count = 2;
  task.stream = stream;
  kernels::combine(task, n);
  for (T* const result : out) {
    EXPECT_TRUE(n == 0 || std::memcmp(result, expected.data(), expected.size()) == 0)
        << dtype_name(dtype) << " " << reduce_op_name(op) << " n " << n << " skew " << skew
        << (stream ? " streamed" : "") << (interrupted ? " interrupted" : "")
        << " DS_TEST_SEED=" << ds::run_seed();
  }
  for (Buffer<T>* buffer : {&first, &second}) {  // nothing beyond
    const T zero{};
    EXPECT_EQ(std::memcmp(buffer->data() + n, &zero, sizeof(T)), 0);
  }
}

template <class T>
void check_type(DType dtype) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax}) {
    if (op == ReduceOp::kAverage && !dtype_is_floating(dtype)) continue;
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{31}, int64_t{64}, int64_t{333}}) {
      for (const bool stream : {false, true}) {
        for (const size_t skew : {size_t{0}, size_t{3}}) {
          check<T>(dtype, op, n, skew, stream, 3, false);
          check<T>(dtype, op, n, skew, stream, 4, true);
        }
      }
    }
  }
}

TEST_P(Combine, EveryType) {
  check_type<float>(DType::kFloat32);
  check_type<double>(DType::kFloat64);
  check_type<bfloat16>(DType::kBFloat16);
  check_type<float16>(DType::kFloat16);
  check_type<int8_t>(DType::kInt8);
  check_type<int16_t>(DType::kInt16);
  check_type<int32_t>(DType::kInt32);
  check_type<int64_t>(DType::kInt64);
  check_type<uint8_t>(DType::kUInt8);
  check_type<uint16_t>(DType::kUInt16);
  check_type<uint32_t>(DType::kUInt32);
  check_type<uint64_t>(DType::kUInt64);
}

TEST_P(Combine, StreamingCopies) {
  for (const int64_t n : {0, 1, 63, 64, 65, 400, 4099}) {
    for (const size_t skew : {size_t{0}, size_t{1}, size_t{40}}) {
      const auto bytes = random_bytes(DType::kUInt8, n, ds::run_seed());
      Buffer<std::byte> from(n, 7), to(n, skew);
      std::copy(bytes.begin(), bytes.end(), from.data());
      kernels::stream_copy(to.data(), from.data(), n);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), to.data())) << n << " " << skew;
      EXPECT_EQ(to.data()[n], std::byte{0});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Combine, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const ::testing::TestParamInfo<int64_t>& param) {
                           return std::string(hwy::TargetName(param.param));
                         });

}  // namespace
}  // namespace ds::testing
