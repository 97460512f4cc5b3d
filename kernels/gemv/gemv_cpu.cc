// gemv with Highway: four rows of w at a time, all rows of x against them while they lie in the
// first cache level.
#include "kernels/gemv/gemv.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/cpu.h"
#include "kernels/gemv/chunks.h"
#include "kernels/gemv/gemv_pairs.h"
#include "kernels/gemv/put.h"
#include "kernels/gemv/scratch.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemv/gemv_cpu.cc"
#include <hwy/foreach_target.h>

#include "kernels/simd-inl.h"

#ifndef DS_KERNELS_GEMV_CALL_
#define DS_KERNELS_GEMV_CALL_
namespace ds::kernels {

// Floats between prepared rows of x.
constexpr int64_t gemv_padded(int64_t k) { return (k + 63) / 64 * 64; }

}  // namespace ds::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

constexpr int kRows = 4;    // of w: as many independent sums as hide the latency of an addition
constexpr int kTokens = 4;  // rows of x at a time
constexpr int kMostSums = HWY_MAX_BYTES >= 64 ? 16 : 12;  // that stay in registers

// Two vectors of bf16 as fp32: the even elements and the odd ones, which costs a shift and a mask
// where the order of memory would cost a permutation. Rows of x are prepared in the same order.
struct Pair {
  VF even, odd;
};
HWY_INLINE Pair load_pair(DF d, const bfloat16* p) {
  const hn::RebindToUnsigned<DF> d32;
  const auto bits = hn::BitCast(
      d32, hn::LoadU(hn::Repartition<uint16_t, DF>(), reinterpret_cast<const uint16_t*>(p)));
  return {hn::BitCast(d, hn::ShiftLeft<16>(bits)),
          hn::BitCast(d, hn::And(bits, hn::Set(d32, 0xFFFF0000u)))};
}

template <class T>
constexpr bool kPairs = std::is_same_v<T, bfloat16>;

// fp32 copies of the rows of x; whole pairs of vectors of bf16 calls are split as above.
template <class T>
void prepare(const Gemv& call, float* rows) {
  const DF d;
  const int64_t step = simd::lanes(), k = call.k;
  const int64_t paired = kPairs<T> ? k / (2 * step) * (2 * step) : 0;
  for (int64_t i = 0; i < call.m; ++i) {
    const T* x = static_cast<const T*>(call.x) + i * k;
    float* row = rows + i * gemv_padded(k);
    if constexpr (kPairs<T>) {
      for (int64_t l = 0; l < paired; l += 2 * step) {
        const Pair pair = load_pair(d, x + l);
        hn::StoreU(pair.even, d, row + l);
        hn::StoreU(pair.odd, d, row + l + step);
      }
    }
    simd::for_vectors(k - paired, [&](int64_t l, auto count) DS_SIMD_BODY {
      simd::store_n(simd::load_n(d, x + paired + l, count), d, row + paired + l, count);
    });
  }
}

// kT tokens against kR rows of w that lie k elements apart.
template <int kR, int kT, class T>
HWY_INLINE void dot_block(const T* w, int64_t k, const float* x, int64_t ahead,
                          float (&out)[kR][kT]) {
  const DF d;
  const int64_t step = simd::lanes(), pad = gemv_padded(k);
  VF sum[kR][kT];
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kT; ++t) sum[r][t] = hn::Zero(d);
  }
  const auto add = [&](int r, VF weight, const float* at) DS_SIMD_BODY {
#pragma GCC unroll 4
    for (int t = 0; t < kT; ++t) {
      sum[r][t] = hn::MulAdd(weight, hn::LoadU(d, at + t * pad), sum[r][t]);
    }
  };
  int64_t l = 0;
  if constexpr (kPairs<T>) {
    for (; l + 2 * step <= k; l += 2 * step) {
#pragma GCC unroll 4
      for (int r = 0; r < kR; ++r) {
        const T* p = w + r * k + l;
        __builtin_prefetch(p + ahead);
        const Pair pair = load_pair(d, p);
        add(r, pair.even, x + l);
        add(r, pair.odd, x + l + step);
      }
    }
  }
  for (; l + step <= k; l += step) {
#pragma GCC unroll 4
    for (int r = 0; r < kR; ++r) {
      const T* p = w + r * k + l;
      __builtin_prefetch(p + ahead);
      add(r, simd::load(d, p), x + l);
    }
  }
  if (l < k) {
#pragma GCC unroll 4
    for (int r = 0; r < kR; ++r) {
      const VF weight = simd::load_n(d, w + r * k + l, k - l);
#pragma GCC unroll 4
      for (int t = 0; t < kT; ++t) {
        sum[r][t] = hn::MulAdd(weight, simd::load_n(d, x + t * pad + l, k - l), sum[r][t]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kT; ++t) out[r][t] = simd::sum_of_lanes(d, sum[r][t]);
  }
}

template <int kR, int kT, class T>
void block(const Gemv& call, const float* rows, int64_t j, int64_t t) {
  if constexpr (kR * kT > kMostSums) {
    block<kR / 2, kT, T>(call, rows, j, t);
    return block<kR / 2, kT, T>(call, rows, j + kR / 2, t);
  }
  const T* w = static_cast<const T*>(call.w);
  float out[kR][kT];
  dot_block<kR, kT>(w + j * call.k, call.k, rows + t * gemv_padded(call.k), kR * call.k, out);
  for (int r = 0; r < kR; ++r) {
    for (int i = 0; i < kT; ++i) {
      put_sum(call.out, call.y, (t + i) * call.n + j + r, static_cast<const T*>(call.bias), j + r,
              out[r][i]);
    }
  }
}

template <int kR, class T>
void block_of_all(const Gemv& call, const float* rows, int64_t j) {
  int64_t t = 0;
  for (; t + kTokens <= call.m; t += kTokens) block<kR, kTokens, T>(call, rows, j, t);
  switch (call.m - t) {
    case 1:
      return block<kR, 1, T>(call, rows, j, t);
    case 2:
      return block<kR, 2, T>(call, rows, j, t);
    case 3:
      return block<kR, 3, T>(call, rows, j, t);
    default:
      return;
  }
}

template <class T>
void run(const Gemv& call, const float* rows, int64_t begin, int64_t end) {
  int64_t j = begin;
  for (; j + kRows <= end; j += kRows) block_of_all<kRows, T>(call, rows, j);
  for (; j < end; ++j) block_of_all<1, T>(call, rows, j);
}

void prepare_f32(const Gemv& call, float* rows) { prepare<float>(call, rows); }
// Whether the products of pairs take the place of fp32's.
bool takes_pairs() { return HWY_MAX_BYTES >= 64 && cpu_features().avx512_bf16; }

void prepare_bf16(const Gemv& call, float* rows) {
  if (takes_pairs()) return gemv_pairs_prepare(call, reinterpret_cast<uint16_t*>(rows));
  prepare<bfloat16>(call, rows);
}
void prepare_f16(const Gemv& call, float* rows) { prepare<float16>(call, rows); }
void run_f32(const Gemv& call, const float* rows, int64_t begin, int64_t end) {
  run<float>(call, rows, begin, end);
}
void run_bf16(const Gemv& call, const float* rows, int64_t begin, int64_t end) {
  if (takes_pairs()) {
    return gemv_pairs_run(call, reinterpret_cast<const uint16_t*>(rows), begin, end);
  }
  run<bfloat16>(call, rows, begin, end);
}
void run_f16(const Gemv& call, const float* rows, int64_t begin, int64_t end) {
  run<float16>(call, rows, begin, end);
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(prepare_f32);
HWY_EXPORT(prepare_bf16);
HWY_EXPORT(prepare_f16);
HWY_EXPORT(run_f32);
HWY_EXPORT(run_bf16);
HWY_EXPORT(run_f16);

// Bytes of w in the shortest chunk that is worth a thread's while.
constexpr int64_t kLeastChunk = 128 << 10;

void launch(const Gemv& call, ThreadPool& pool, void (*prepare)(const Gemv&, float*),
            void (*run)(const Gemv&, const float*, int64_t, int64_t)) {
  thread_local GrowingBuffer buffer;
  float* rows = buffer.reserve(call.m * gemv_padded(call.k));
  prepare(call, rows);
  const int64_t item = call.type == FloatType::kFloat32 ? 4 : 2;
  const int64_t row = std::max<int64_t>(1, call.k * item);
  const int64_t chunk = gemv_chunk_bytes(call.n * row, pool.threads(), kLeastChunk);
  const int64_t grain = std::max<int64_t>(1, chunk / row);
  pool.for_range(call.n, (grain + 3) / 4 * 4,
                 [&](int64_t begin, int64_t end) { run(call, rows, begin, end); });
}

}  // namespace

void gemv(const Gemv& call, ThreadPool& pool) {
  if (call.m <= 0 || call.n <= 0) return;
  switch (call.type) {
    case FloatType::kBFloat16:
      return launch(call, pool, HWY_DYNAMIC_DISPATCH(prepare_bf16), HWY_DYNAMIC_DISPATCH(run_bf16));
    case FloatType::kFloat16:
      return launch(call, pool, HWY_DYNAMIC_DISPATCH(prepare_f16), HWY_DYNAMIC_DISPATCH(run_f16));
    default:
      return launch(call, pool, HWY_DYNAMIC_DISPATCH(prepare_f32), HWY_DYNAMIC_DISPATCH(run_f32));
  }
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
