// Products of small matrices on tensor cores, their operands from shared memory, and copies into it
// that run beside arithmetic. Compiled for the CPU, the same with the lanes of a warp.
#pragma once

#include "kernels/cuda/device.cuh"

namespace ds::kernels::cuda {

// ---- copies to shared memory ----

// Starts a copy of up to 16 bytes; what is missing becomes 0. Both places are aligned to 16 bytes.
__device__ __forceinline__ void copy_async(void* shared, const void* from, int bytes) {
#ifdef __CUDA_ARCH__
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
#elif !defined(__CUDACC__)
  auto* const to = static_cast<unsigned char*>(shared);
  const auto* const source = static_cast<const unsigned char*>(from);
  if (bytes >= 16) {
    std::memcpy(to, source, 16);
    return;
  }
  for (int i = 0; i < 16; ++i) to[i] = i < bytes ? source[i] : 0;
#endif
}

// The same with four bytes, all or none of which are there.
__device__ __forceinline__ void copy_word_async(float* shared, const float* from, bool there) {
#ifdef __CUDA_ARCH__
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(there ? 4 : 0)
               : "memory");
#elif !defined(__CUDACC__)
  *shared = there ? *from : 0.0f;
#endif
}

// Ends a group of copies.
__device__ __forceinline__ void copy_commit() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most N of this thread's last groups are under way.
template <int N>
__device__ __forceinline__ void copy_wait() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// ---- operands ----

// Four matrices of 8 x 8 elements of 16 bits. Lanes 8i ... 8i + 7 give the addresses (aligned to 16
// bytes) of the rows of matrix i; out[i] is elements 2t and 2t + 1 of row g of it, where g is
// lane / 4 and t is lane % 4. With kTransposed, of column g instead.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(unsigned (&out)[4], const void* row) {
#ifdef __CUDA_ARCH__
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(from)
                 : "memory");
  }
#elif !defined(__CUDACC__)
  const auto rows = emulation::all_lanes(static_cast<const uint16_t*>(row));
  const unsigned lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const auto at = [&](unsigned r, unsigned c) { return rows[8 * i + r][c]; };
    const unsigned low = kTransposed ? at(2 * t, g) : at(g, 2 * t);
    const unsigned high = kTransposed ? at(2 * t + 1, g) : at(g, 2 * t + 1);
    out[i] = low | high << 16;
  }
#endif
}

// Two elements in one register, the first in the low half.
template <class T>
__device__ __forceinline__ unsigned pack_two(float low, float high) {
#ifdef __CUDA_ARCH__
  unsigned out;
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  }
  return out;
#else
  return static_cast<unsigned>(narrow<T>(low).bits) | static_cast<unsigned>(narrow<T>(high).bits)
                                                          << 16;
#endif
}

// ---- the product ----

#ifndef __CUDACC__
// What a lane brings to multiply_add.
struct LaneOperands {
  unsigned a[4], b[4];
  float c[2][4];
};

// The product of a warp, once for all its lanes, each sum with k in order.
template <class T>
void multiply_lanes(unsigned char* all) {
  auto* const lanes = reinterpret_cast<LaneOperands*>(all);
  const auto wide = [](unsigned two, float& first, float& second) {
    T low, high;
    low.bits = static_cast<uint16_t>(two);
    high.bits = static_cast<uint16_t>(two >> 16);
    first = widen(low);
    second = widen(high);
  };
  using HalfRow = float __attribute__((vector_size(32)));
  float a[16][16];
  union {
    float numbers[16][16];
    HalfRow rows[16][2];
  } b;
  for (unsigned lane = 0; lane < 32; ++lane) {
    const LaneOperands& from = lanes[lane];
    const unsigned g = lane / 4, two_t = lane % 4 * 2;
    for (unsigned i = 0; i < 4; ++i) {
      float* const to = &a[g + i % 2 * 8][two_t + i / 2 * 8];
      wide(from.a[i], to[0], to[1]);
      const unsigned k = two_t + i % 2 * 8, column = g + i / 2 * 8;
      wide(from.b[i], b.numbers[k][column], b.numbers[k + 1][column]);
    }
  }
  for (unsigned g = 0; g < 8; ++g) {
    LaneOperands* const out = lanes + 4 * g;
    union {
      float numbers[2][16];  // rows g and g + 8
      HalfRow rows[2][2];
    } c;
    for (unsigned i = 0; i < 16; ++i) {
      const float* const from = out[i % 8 / 2].c[i / 8];
      c.numbers[0][i] = from[i % 2];
      c.numbers[1][i] = from[2 + i % 2];
    }
    // Four sums, which wait less for each other.
    HalfRow upper_left = c.rows[0][0], upper_right = c.rows[0][1];
    HalfRow lower_left = c.rows[1][0], lower_right = c.rows[1][1];
#pragma GCC unroll 16
    for (unsigned k = 0; k < 16; ++k) {
      upper_left += a[g][k] * b.rows[k][0];
      upper_right += a[g][k] * b.rows[k][1];
      lower_left += a[g + 8][k] * b.rows[k][0];
      lower_right += a[g + 8][k] * b.rows[k][1];
    }
    c.rows[0][0] = upper_left;
    c.rows[0][1] = upper_right;
    c.rows[1][0] = lower_left;
    c.rows[1][1] = lower_right;
    for (unsigned i = 0; i < 16; ++i) {
      float* const to = out[i % 8 / 2].c[i / 8];
      to[i % 2] = c.numbers[0][i];
      to[2 + i % 2] = c.numbers[1][i];
    }
  }
}
#else
// Half of multiply_add, the tensor cores' own size.
template <class T>
__device__ __forceinline__ void multiply_add_half(float (&c)[4], const unsigned (&a)[4],
                                                  unsigned b0, unsigned b1) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#endif
}
#endif

// c[16 x 16] += a[16 x 16] b[16 x 16] in fp32, T is bfloat16 or float16. With g = lane / 4 and
// t = lane % 4 a lane has
//   a: elements (row, k) at (g, 2t) (g + 8, 2t) (g, 2t + 8) (g + 8, 2t + 8), each with the next k;
//   b: elements (k, column) at (2t, g) (2t + 8, g) (2t, g + 8) (2t + 8, g + 8), the same;
//   left: elements of c (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1);
//   right: those eight columns further.
template <class T>
__device__ __forceinline__ void multiply_add(float (&left)[4], float (&right)[4],
                                             const unsigned (&a)[4], const unsigned (&b)[4]) {
#ifdef __CUDACC__
  multiply_add_half<T>(left, a, b[0], b[1]);
  multiply_add_half<T>(right, a, b[2], b[3]);
#else
  LaneOperands mine;
  for (unsigned i = 0; i < 4; ++i) {
    mine.a[i] = a[i];
    mine.b[i] = b[i];
    mine.c[0][i] = left[i];
    mine.c[1][i] = right[i];
  }
  const auto* const lanes = reinterpret_cast<const LaneOperands*>(
      emulation::exchange(kAllLanes, &mine, sizeof(mine), &multiply_lanes<T>));
  const LaneOperands& product = lanes[threadIdx.x % kWarp];
  for (unsigned i = 0; i < 4; ++i) {
    left[i] = product.c[0][i];
    right[i] = product.c[1][i];
  }
#endif
}

}  // namespace ds::kernels::cuda
