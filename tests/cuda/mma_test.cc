// The emulation of kernels/cuda/mma.cuh: what lanes have of matrices, as the tables of fragments of
// PTX's mma.m16n8k16 and ldmatrix have it, and copies that fill up with zeros.
#include "kernels/cuda/mma.cuh"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cuda/emulation/kernel_test.h"

namespace ds {
namespace {

using namespace kernels::cuda;

using MmaTest = testing::KernelTest;

// Element i of a lane's fragments: its row and column.
struct Place {
  int row, column;
};
Place place_in_a(int lane, int i) {  // 16 x 16
  return {lane / 4 + (i < 2 || (i >= 4 && i < 6) ? 0 : 8), lane % 4 * 2 + i % 2 + (i < 4 ? 0 : 8)};
}
Place place_in_b(int lane, int i) {  // 16 x 8
  return {lane % 4 * 2 + i % 2 + (i < 2 ? 0 : 8), lane / 4};
}
Place place_in_c(int lane, int i) {  // 16 x 8
  return {lane / 4 + (i < 2 ? 0 : 8), lane % 4 * 2 + i % 2};
}

struct Fragments {
  unsigned a[4], b[4];
  float c[2][4];
};

// The product of a[16, 16] and b[16, 16], which lies there transposed or not.
template <bool kTransposed>
__global__ void product(const bfloat16* a, const bfloat16* b, Fragments* out) {
  alignas(16) __shared__ bfloat16 a_tile[16 * 16], b_tile[16 * 16];
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) {
    a_tile[i] = a[i];
    b_tile[i] = b[i];
  }
  __syncwarp();
  Fragments& mine = out[lane];
  load_matrices<false>(mine.a, a_tile + lane % 16 * 16 + lane / 16 * 8);
  if constexpr (kTransposed) {  // rows are columns of the operand
    load_matrices<false>(mine.b, b_tile + (lane % 8 + lane / 16 * 8) * 16 + lane / 8 % 2 * 8);
  } else {
    load_matrices<true>(mine.b, b_tile + lane % 16 * 16 + lane / 16 * 8);
  }
  for (float(&half)[4] : mine.c) {
    for (float& sum : half) sum = 1;
  }
  multiply_add<bfloat16>(mine.c[0], mine.c[1], mine.a, mine.b);
}

TEST_F(MmaTest, FragmentsAndProducts) {
  std::mt19937 random(7);
  std::vector<bfloat16> a(256), b(256);
  const auto fill = [&](std::vector<bfloat16>& values) {
    for (bfloat16& value : values) {
      value = from_float<bfloat16>(static_cast<float>(static_cast<int>(random() % 31) - 15));
    }
  };
  fill(a);
  fill(b);
  for (const bool transposed : {false, true}) {
    std::vector<Fragments> out(32);
    run(transposed ? &product<true> : &product<false>, {1, 32}, a.data(), b.data(), out.data());
    const auto b_at = [&](int k, int n) {
      return b[static_cast<size_t>(transposed ? n * 16 + k : k * 16 + n)];
    };
    const auto half = [](const unsigned* registers, int i) {
      return static_cast<uint16_t>(registers[i / 2] >> (i % 2 * 16));
    };
    for (int lane = 0; lane < 32; ++lane) {
      const Fragments& mine = out[static_cast<size_t>(lane)];
      for (int i = 0; i < 8; ++i) {
        const Place at = place_in_a(lane, i);
        EXPECT_EQ(half(mine.a, i), a[static_cast<size_t>(at.row * 16 + at.column)].bits)
            << "a" << i << " of lane " << lane;
        // The second half of the registers has the next eight columns.
        const Place of_b = place_in_b(lane, i % 4);
        EXPECT_EQ(half(mine.b, i), b_at(of_b.row, of_b.column + i / 4 * 8).bits)
            << "b" << i << " of lane " << lane;
      }
      for (int i = 0; i < 8; ++i) {
        const Place at = place_in_c(lane, i % 4);
        const int column = at.column + i / 4 * 8;
        float sum = 1;
        for (int k = 0; k < 16; ++k) {
          sum += to_float(a[static_cast<size_t>(at.row * 16 + k)]) * to_float(b_at(k, column));
        }
        EXPECT_EQ(mine.c[i / 4][i % 4], sum) << "c" << i << " of lane " << lane;
      }
    }
  }
}

__global__ void copies(const float* from, float* to) {
  alignas(16) __shared__ float words[32], packs[32 * 4];
  const int lane = static_cast<int>(threadIdx.x);
  copy_word_async(&words[lane], from + lane, lane % 3 != 0);
  copy_async(&packs[4 * lane], from + 4 * lane, lane % 5 * 4);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  to[lane] = words[31 - lane];
  for (int i = 0; i < 4; ++i) to[32 + 4 * lane + i] = packs[4 * (31 - lane) + i];
}

TEST_F(MmaTest, CopiesFillUpWithZeros) {
  std::vector<float> from(128), to(160, -1);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i + 1);
  run(&copies, {1, 32}, from.data(), to.data());
  for (int lane = 0; lane < 32; ++lane) {
    const int other = 31 - lane;
    EXPECT_EQ(to[static_cast<size_t>(lane)], other % 3 != 0 ? static_cast<float>(other + 1) : 0.0f);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(to[static_cast<size_t>(32 + 4 * lane + i)],
                i < other % 5 ? static_cast<float>(4 * other + i + 1) : 0.0f);
    }
  }
}

}  // namespace
}  // namespace ds
