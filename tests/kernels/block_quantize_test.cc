// Blocks of codes with one scale against a reference in double: codes, scales, kept errors, and
// what is refused.
#include "kernels/quantize/block_quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "fresh_seed.h"
#include "kernels/case_util.h"
#include "ops/block_quantize.h"

namespace ds::testing {
namespace {

using Begins = std::vector<int64_t>;

// Blocks of all lengths: full ones, short even ones, and an odd last one.
Begins random_blocks(Random& random, int count) {
  std::uniform_int_distribution<int64_t> half(1, kernels::kMostBlockElements / 2);
  Begins begins{0};
  for (int i = 0; i < count; ++i) {
    begins.push_back(begins.back() + (i == 1 ? kernels::kMostBlockElements : 2 * half(random)));
  }
  begins.push_back(begins.back() + 33);
  return begins;
}

Tensor bytes_for(int bits, const Begins& begins) {
  const int64_t bytes = ops::packed_bytes(bits, begins.back(), kernels::block_count(begins));
  return Tensor::zeros(make_cpu_device(), DType::kUInt8, {bytes}, MemoryTag::kOther);
}

std::vector<double> unpacked(const OpContext& ctx, const Tensor& packed, int bits,
                             const Begins& begins) {
  Tensor y = Tensor::zeros(make_cpu_device(), DType::kFloat32, {begins.back()}, MemoryTag::kOther);
  ops::unpack_blocks(ctx, packed, bits, begins, 1, false, y);
  return doubles(y);
}

class BlockQuantize : public ::testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{1};
  OpContext ctx_{make_cpu_device(), &pool_};
};

TEST_P(BlockQuantize, CodesAreTheNearest) {
  const int bits = GetParam();
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(str_cat("seed ", seed));
  Random random(seed);
  const double levels = bits == 8 ? 128 : 8;
  for (const DType type : kFloatTypes) {
    const Begins begins = random_blocks(random, 40);
    const Tensor x = random_tensor(random, type, {begins.back()}, 0.02);
    const std::vector<double> values = doubles(x);
    Tensor packed = bytes_for(bits, begins);
    ops::pack_blocks(ctx_, x, bits, begins, packed);
    const std::vector<double> back = unpacked(ctx_, packed, bits, begins);
    for (size_t block = 0; block + 1 < begins.size(); ++block) {
      const auto first = static_cast<size_t>(begins[block]);
      const auto last = static_cast<size_t>(begins[block + 1]);
      size_t extreme = first;
      for (size_t i = first; i < last; ++i) {
        // Of two as large the negative one counts.
        const double more = std::abs(values[i]) - std::abs(values[extreme]);
        if (more > 0 || (more == 0 && values[i] < 0)) extreme = i;
      }
      // Dividing by a power of two is exact, so that the largest element comes back as it was.
      EXPECT_EQ(back[extreme], values[extreme]);
      const auto scale = static_cast<float>(values[extreme] / -levels);
      for (size_t i = first; i < last; ++i) {
        const int code = kernels::quantize_block_element_ref(bits, values[i], scale);
        // x / scale is rounded in fp32: at a tie the neighbour may win.
        const double at = std::abs(values[i] / scale - std::floor(values[i] / scale) - 0.5);
        const double slack = at < 1e-4 ? std::abs(scale) : 0;
        EXPECT_NEAR(back[i], code * double{scale}, slack + 1e-7 * std::abs(back[i]))
            << i << " of block " << block;
      }
    }
  }
}

TEST_P(BlockQuantize, ThreadsDoNotMatter) {
  const int bits = GetParam();
  Random random(ds::fresh_seed());
  const Begins begins = random_blocks(random, 300);
  const Tensor x = random_tensor(random, DType::kFloat32, {begins.back()});
  Tensor one = bytes_for(bits, begins), many = bytes_for(bits, begins);
  ops::pack_blocks(ctx_, x, bits, begins, one);
  ThreadPool pool(4);
  const OpContext ctx{make_cpu_device(), &pool};
  ops::pack_blocks(ctx, x, bits, begins, many);
  EXPECT_EQ(std::memcmp(one.raw(), many.raw(), static_cast<size_t>(one.bytes())), 0);
}

TEST_P(BlockQuantize, ZeroAndNonFiniteBlocks) {
  const int bits = GetParam();
  const Begins begins{0, 64, 128, 192, 256};
  Tensor x = Tensor::zeros(make_cpu_device(), DType::kFloat32, {256}, MemoryTag::kOther);
  std::fill_n(x.data<float>() + 64, 64, 1.5f);
  x.data<float>()[70] = std::numeric_limits<float>::infinity();
  std::fill_n(x.data<float>() + 128, 64, std::numeric_limits<float>::denorm_min());
  std::fill_n(x.data<float>() + 192, 64, -3.0f);
  Tensor packed = bytes_for(bits, begins);
  ops::pack_blocks(ctx_, x, bits, begins, packed);
  const std::vector<double> back = unpacked(ctx_, packed, bits, begins);
  for (size_t i = 0; i < back.size(); ++i) {
    if (i >= 64 && i < 128) {
      EXPECT_TRUE(std::isnan(back[i])) << i;
    } else {
      EXPECT_EQ(back[i], i < 192 ? 0 : -3) << i;
    }
  }
}

// Nibbles: the earlier element above. Adding and factors.
TEST_P(BlockQuantize, LayoutAndSums) {
  const int bits = GetParam();
  const Begins begins{0, 4};
  const std::vector<float> values =
      bits == 8 ? std::vector<float>{-128, 3, 0, 127} : std::vector<float>{-8, 3, 0, 7};
  Tensor x = Tensor::empty(make_cpu_device(), DType::kFloat32, {4}, MemoryTag::kOther);
  std::ranges::copy(values, x.data<float>());
  Tensor packed = bytes_for(bits, begins);
  ops::pack_blocks(ctx_, x, bits, begins, packed);
  const uint8_t* bytes = packed.data<uint8_t>();
  if (bits == 8) {
    EXPECT_EQ(bytes[0], 0x80);
    EXPECT_EQ(bytes[3], 0x7F);
  } else {
    EXPECT_EQ(bytes[0], 0x83);
    EXPECT_EQ(bytes[1], 0x07);
  }
  for (const DType type : kFloatTypes) {
    Tensor y = Tensor::zeros(make_cpu_device(), type, {4}, MemoryTag::kOther);
    ops::unpack_blocks(ctx_, packed, bits, begins, 0.5f, false, y);
    ops::unpack_blocks(ctx_, packed, bits, begins, 1, true, y);
    const std::vector<double> sum = doubles(y);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(sum[i], 1.5 * values[i], 1.5 * std::abs(values[i]) * unit_roundoff(type));
    }
  }
  ops::scale_packed(ctx_, packed, bits, begins, 2);
  EXPECT_EQ(unpacked(ctx_, packed, bits, begins)[0], 2 * values[0]);
}

TEST_P(BlockQuantize, ErrorsAreKept) {
  const int bits = GetParam();
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(str_cat("seed ", seed));
  Random random(seed);
  const Begins begins = random_blocks(random, 20);
  for (const float beta : {0.0f, 0.8f}) {
    Tensor errors = bytes_for(8, begins), packed = bytes_for(bits, begins);
    for (int round = 0; round < 4; ++round) {
      const Tensor x = random_tensor(random, DType::kFloat32, {begins.back()});
      const std::vector<double> values = doubles(x), old = unpacked(ctx_, errors, 8, begins);
      ops::pack_blocks(ctx_, x, bits, begins, packed, &errors, beta);
      const std::vector<double> sent = unpacked(ctx_, packed, bits, begins);
      const std::vector<double> now = unpacked(ctx_, errors, 8, begins);
      for (size_t block = 0; block + 1 < begins.size(); ++block) {
        const auto first = static_cast<size_t>(begins[block]);
        const auto last = static_cast<size_t>(begins[block + 1]);
        std::vector<double> expected;
        double most = 0;
        for (size_t i = first; i < last; ++i) {
          expected.push_back(beta * old[i] + (1 - beta) * (values[i] + old[i] - sent[i]));
          most = std::max(most, std::abs(expected.back()));
        }
        // Errors have 8 bits themselves; the positive end has one level less.
        for (size_t i = first; i < last; ++i) {
          EXPECT_NEAR(now[i], expected[i - first], most / 128 + 1e-5) << i;
        }
      }
    }
  }
}

TEST_P(BlockQuantize, Refuses) {
  const int bits = GetParam();
  const Begins begins{0, 32, 64};
  const Tensor x = Tensor::zeros(make_cpu_device(), DType::kFloat32, {64}, MemoryTag::kOther);
  Tensor packed = bytes_for(bits, begins);
  const auto refuses = [&](const Tensor& from, int n, const Begins& blocks, Tensor& to) {
    EXPECT_THROW(ops::pack_blocks(ctx_, from, n, blocks, to), Error);
  };
  refuses(x, 5, begins, packed);
  refuses(x, bits, {}, packed);
  refuses(x, bits, {1, 64}, packed);
  refuses(x, bits, {0, 31, 64}, packed);
  refuses(x, bits, {0, 64, 32}, packed);
  refuses(x, bits, {0, 32}, packed);
  refuses(x, bits, {0, 1024}, packed);
  Tensor small = packed.slice(0, 0, packed.elements() - 4);
  refuses(x, bits, begins, small);
  const Tensor half = Tensor::zeros(make_cpu_device(), DType::kBFloat16, {64}, MemoryTag::kOther);
  Tensor errors = bytes_for(8, begins);
  EXPECT_THROW(ops::pack_blocks(ctx_, half, bits, begins, packed, &errors, 0), Error);
  Tensor y = Tensor::zeros(make_cpu_device(), DType::kFloat32, {65}, MemoryTag::kOther);
  EXPECT_THROW(ops::unpack_blocks(ctx_, packed, bits, begins, 1, false, y), Error);
}

INSTANTIATE_TEST_SUITE_P(Bits, BlockQuantize, ::testing::Values(8, 4),
                         [](const auto& bits) { return str_cat("Bits", bits.param); });

}  // namespace
}  // namespace ds::testing
