#include "kernels/gemv/gemv_pairs.h"

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/gemv/put.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
namespace ds::kernels {
namespace {

constexpr int kRows = 4;    // of w, as in gemv_cpu.cc
constexpr int kTokens = 4;  // rows of x at a time, so that all sums stay in registers
constexpr int64_t kStep = 32;

__m512bh pairs(__m512i words) {
  // A cast of the compiler's, not of the value: the instruction takes any register.
  return reinterpret_cast<__m512bh>(words);
}

// The intrinsics for it make GCC 12 warn of a value that is not set (as _mm512_reduce_add_ps does).
float sum_of_lanes(__m512 v) {
  v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  return _mm512_cvtss_f32(v);
}

// kT tokens against kR rows of w that lie k elements apart.
template <int kR, int kT>
void dot_block(const uint16_t* w, int64_t k, const uint16_t* x, float (&out)[kR][kT]) {
  const int64_t pad = gemv_pairs_padded(k), ahead = kR * k;
  __m512 sum[kR][kT];
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kT; ++t) sum[r][t] = _mm512_setzero_ps();
  }
  const auto add = [&](int64_t l, auto load) {
    __m512i of_x[kT];
#pragma GCC unroll 4
    for (int t = 0; t < kT; ++t) of_x[t] = _mm512_loadu_si512(x + t * pad + l);
#pragma GCC unroll 4
    for (int r = 0; r < kR; ++r) {
      const __m512i weights = load(w + r * k + l);
#pragma GCC unroll 4
      for (int t = 0; t < kT; ++t) {
        sum[r][t] = _mm512_dpbf16_ps(sum[r][t], pairs(weights), pairs(of_x[t]));
      }
    }
  };
  int64_t l = 0;
  for (; l + kStep <= k; l += kStep) {
    add(l, [ahead](const uint16_t* p) {
      __builtin_prefetch(p + ahead);
      return _mm512_loadu_si512(p);
    });
  }
  if (l < k) {
    const auto rest = static_cast<__mmask32>((uint32_t{1} << (k - l)) - 1);
    add(l, [rest](const uint16_t* p) { return _mm512_maskz_loadu_epi16(rest, p); });
  }
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kT; ++t) out[r][t] = sum_of_lanes(sum[r][t]);
  }
}

template <int kR, int kT>
void block(const Gemv& call, const uint16_t* rows, int64_t j, int64_t t) {
  float out[kR][kT];
  dot_block<kR, kT>(static_cast<const uint16_t*>(call.w) + j * call.k, call.k,
                    rows + t * gemv_pairs_padded(call.k), out);
  for (int r = 0; r < kR; ++r) {
    for (int i = 0; i < kT; ++i) {
      put_sum(call.out, call.y, (t + i) * call.n + j + r, static_cast<const bfloat16*>(call.bias),
              j + r, out[r][i]);
    }
  }
}

template <int kR>
void block_of_all(const Gemv& call, const uint16_t* rows, int64_t j) {
  int64_t t = 0;
  for (; t + kTokens <= call.m; t += kTokens) block<kR, kTokens>(call, rows, j, t);
  switch (call.m - t) {
    case 1:
      return block<kR, 1>(call, rows, j, t);
    case 2:
      return block<kR, 2>(call, rows, j, t);
    case 3:
      return block<kR, 3>(call, rows, j, t);
    default:
      return;
  }
}

}  // namespace

void gemv_pairs_prepare(const Gemv& call, uint16_t* rows) {
  const int64_t pad = gemv_pairs_padded(call.k);
  for (int64_t i = 0; i < call.m; ++i, rows += pad) {
    std::memcpy(rows, static_cast<const uint16_t*>(call.x) + i * call.k,
                static_cast<size_t>(call.k) * sizeof(uint16_t));
    std::fill(rows + call.k, rows + pad, uint16_t{0});
  }
}

void gemv_pairs_run(const Gemv& call, const uint16_t* rows, int64_t begin, int64_t end) {
  int64_t j = begin;
  for (; j + kRows <= end; j += kRows) block_of_all<kRows>(call, rows, j);
  for (; j < end; ++j) block_of_all<1>(call, rows, j);
}

}  // namespace ds::kernels
HWY_POP_ATTRIBUTES
