// Codes that a GPU makes beside those of the CPU: the same bits, of weights and of messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <random>

#include "base/text.h"
#include "cuda/side.h"
#include "fresh_seed.h"
#include "ops/block_quantize.h"
#include "ops/quantized_linear.h"

namespace ds::testing {
namespace {

using Random = std::mt19937_64;
using Bytes = std::vector<uint8_t>;

class GpuQuantize : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_none;
    if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
    gpu_ = std::make_unique<Side>(make_cuda_device(0));
    seed_ = ds::fresh_seed();
    random_.seed(seed_);
  }

  std::vector<float> numbers(int64_t count, float deviation) {
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> out(static_cast<size_t>(count));
    for (float& x : out) x = normal(random_);
    return out;
  }

  Side cpu_{make_cpu_device()};
  std::unique_ptr<Side> gpu_;
  uint64_t seed_ = 0;
  Random random_;
};

// ---- weights ----

TEST_F(GpuQuantize, WeightsAsTheCpuDoes) {
  for (const ops::QuantizeOptions& options : {ops::QuantizeOptions{8, 0, true},
                                              {8, 32, true},
                                              {4, 0, true},
                                              {4, 8, true},
                                              {4, 64, false},
                                              {4, 0, false}}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {19, 37}, {33, 300}, {16, 64}}) {
      SCOPED_TRACE(str_cat(options.bits, " bits, groups of ", options.group_size, ", ", n, "x", k,
                           ", seed ", seed_));
      std::vector<float> w = numbers(n * k, 0.02f);
      // Rows of zeros, some of them negative, and one that is all above 0.
      for (int64_t l = 0; l < k && n > 4; ++l) {
        w[static_cast<size_t>(l)] = l % 3 == 1 ? -0.0f : 0.0f;
        w[static_cast<size_t>(k + l)] = l % 3 == 0 ? -0.0f : 0.0f;
        w[static_cast<size_t>(2 * k + l)] = std::abs(w[static_cast<size_t>(2 * k + l)]);
      }
      const Side* const sides[] = {&cpu_, gpu_.get()};
      std::vector<uint8_t> codes[2];
      std::vector<uint16_t> scales[2], minima[2];
      std::vector<float> back[2];
      for (int i = 0; i < 2; ++i) {
        const Side& side = *sides[i];
        const Tensor tensor = side.tensor(DType::kFloat32, w).view({n, k});
        const ops::QuantizedWeight q = ops::quantize(side.ctx, tensor, options);
        codes[i] = side.host<uint8_t>(q.codes);
        scales[i] = side.host<uint16_t>(q.scales);
        if (q.minimum) minima[i] = side.host<uint16_t>(q.minimum);
        back[i] = side.host<float>(ops::dequantize(side.ctx, q));
      }
      EXPECT_EQ(codes[1], codes[0]);
      EXPECT_EQ(scales[1], scales[0]);
      EXPECT_EQ(minima[1], minima[0]);
      EXPECT_EQ(minima[0].empty(), options.symmetric);
      EXPECT_EQ(back[1], back[0]);
    }
  }
}

TEST_F(GpuQuantize, RefusesWeightsThatLieElsewhere) {
  const ops::QuantizedWeight q =
      ops::quantize(cpu_.ctx, cpu_.tensor(DType::kFloat32, numbers(64, 1)).view({4, 16}), {});
  const Tensor x = gpu_->tensor(DType::kFloat32, numbers(16, 1)).view({1, 16});
  Tensor y = gpu_->tensor(DType::kFloat32, numbers(4, 1)).view({1, 4});
  EXPECT_THROW(ops::quantized_linear(gpu_->ctx, x, q, Tensor(), y), Error);
  EXPECT_THROW(ops::dequantize(gpu_->ctx, q), Error);
}

// ---- messages ----

using Begins = std::vector<int64_t>;

// Full blocks and many runs of short ones, more than a launch takes; the last is odd.
Begins random_blocks(Random& random, int count) {
  std::uniform_int_distribution<int64_t> half(1, kernels::kMostBlockElements / 2);
  Begins begins{0};
  for (int i = 0; i < count; ++i) {
    const bool full = random() % 3 == 0;
    begins.push_back(begins.back() + (full ? kernels::kMostBlockElements : 2 * half(random)));
  }
  begins.push_back(begins.back() + 33);
  return begins;
}

// The kinds of blocks that have rules of their own.
void add_special(std::vector<float>& x, const Begins& begins) {
  const float special[] = {0,
                           -0.0f,
                           std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN(),
                           std::numeric_limits<float>::denorm_min(),
                           std::numeric_limits<float>::max()};
  for (size_t i = 0; i < std::size(special); ++i) {
    const auto first = static_cast<size_t>(begins[2 * i]),
               last = static_cast<size_t>(begins[2 * i + 1]);
    if (i < 2 || i == 4) std::fill(x.begin() + begins[2 * i], x.begin() + begins[2 * i + 1], 0.0f);
    x[first + (last - first) / 2] = special[i];
  }
}

// As far as a message says something: of NaNs only that they are.
template <class T>
std::vector<uint32_t> meaning(const std::vector<T>& numbers) {
  std::vector<uint32_t> out;
  for (const T x : numbers) {
    const float wide = to_float(x);
    out.push_back(std::isnan(wide) ? 0x7FC00000u : std::bit_cast<uint32_t>(wide));
  }
  return out;
}

template <class T>
void expect_same_messages(Side& cpu, Side& gpu, Random& random, DType dtype, int bits,
                          const std::vector<float>& values, const Begins& begins, int64_t skew) {
  const int64_t n = begins.back(), blocks = kernels::block_count(begins);
  std::vector<T> x(static_cast<size_t>(skew));
  for (const float v : values) x.push_back(from_float<T>(v));
  const auto bytes = static_cast<size_t>(ops::packed_bytes(bits, n, blocks));
  const auto error_bytes = static_cast<size_t>(ops::packed_bytes(8, n, blocks));
  const bool keeps = dtype == DType::kFloat32;
  std::vector<T> sums(static_cast<size_t>(n + skew));
  for (T& s : sums) s = from_float<T>(static_cast<float>(random() % 1000) * 1e-3f);
  Bytes messages[2], errors[2];
  std::vector<uint32_t> numbers[2], added[2];
  Side* const sides[] = {&cpu, &gpu};
  for (int i = 0; i < 2; ++i) {
    const Side& side = *sides[i];
    const Tensor from = side.tensor(dtype, x).slice(0, skew, n + skew);
    Tensor packed = side.tensor(DType::kUInt8, Bytes(bytes));
    Tensor kept = side.tensor(DType::kUInt8, Bytes(error_bytes));
    ops::pack_blocks(side.ctx, from, bits, begins, packed, keeps ? &kept : nullptr, 0.8f);
    ops::pack_blocks(side.ctx, from, bits, begins, packed, keeps ? &kept : nullptr, 0.8f);
    messages[i] = side.host<uint8_t>(packed);
    errors[i] = side.host<uint8_t>(kept);
    ops::scale_packed(side.ctx, packed, bits, begins, 0.3f);
    Tensor y = side.tensor(dtype, sums).slice(0, skew, n + skew);
    ops::unpack_blocks(side.ctx, packed, bits, begins, 0.7f, true, y);
    added[i] = meaning(side.host<T>(y));
    ops::unpack_blocks(side.ctx, packed, bits, begins, 0.7f, false, y);
    numbers[i] = meaning(side.host<T>(y));
  }
  EXPECT_EQ(messages[1], messages[0]);
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_EQ(numbers[1], numbers[0]);
  EXPECT_EQ(added[1], added[0]);
  EXPECT_NE(added[0], numbers[0]);
}

TEST_F(GpuQuantize, MessagesAsTheCpuDoes) {
  for (const int bits : {8, 4}) {
    for (const int64_t skew : {0, 1}) {
      SCOPED_TRACE(str_cat(bits, " bits, skew ", skew, ", seed ", seed_));
      const Begins begins = random_blocks(random_, 300);
      std::vector<float> x = numbers(begins.back(), 0.02f);
      add_special(x, begins);
      expect_same_messages<float>(cpu_, *gpu_, random_, DType::kFloat32, bits, x, begins, skew);
      expect_same_messages<bfloat16>(cpu_, *gpu_, random_, DType::kBFloat16, bits, x, begins, skew);
      expect_same_messages<float16>(cpu_, *gpu_, random_, DType::kFloat16, bits, x, begins, skew);
    }
  }
}

TEST_F(GpuQuantize, NoBlocks) {
  const Begins begins{0};
  const Tensor x = gpu_->tensor(DType::kFloat32, std::vector<float>());
  Tensor packed = gpu_->tensor(DType::kUInt8, Bytes(4)), y = x;
  ops::pack_blocks(gpu_->ctx, x, 4, begins, packed);
  ops::unpack_blocks(gpu_->ctx, packed, 4, begins, 1, true, y);
  ops::scale_packed(gpu_->ctx, packed, 4, begins, 2);
  EXPECT_EQ(gpu_->host<uint8_t>(packed), Bytes(4));
}

}  // namespace
}  // namespace ds::testing
