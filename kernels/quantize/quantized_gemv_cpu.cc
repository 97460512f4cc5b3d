// quantized_gemv with Highway: codes become fp32 in registers, two slices of a panel or two panels
// at a time.
#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/gemv/chunks.h"
#include "kernels/gemv/gemv.h"
#include "kernels/gemv/scratch.h"
#include "kernels/quantize/byte_planes.h"
#include "kernels/quantize/quantize.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/quantized_gemv_cpu.cc"
#include <hwy/foreach_target.h>

#include "kernels/quantize/codes-inl.h"

#ifndef DS_KERNELS_QUANTIZED_GEMV_ROWS_
#define DS_KERNELS_QUANTIZED_GEMV_ROWS_
namespace ds::kernels {

// Rows of x as the loops read them: fp32, zero from k on, then their sum over every group.
struct QuantizedRows {
  explicit QuantizedRows(const QuantizedShape& w)
      : sums((w.padded_k() + 15) / 16 * 16), stride(sums + (w.groups() + 15) / 16 * 16) {}
  int64_t sums;    // where the sums begin in a row
  int64_t stride;  // floats between rows
};

}  // namespace ds::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

// Rows of x at a time, so that all sums stay in registers: of two slices, and where there are
// enough rows, of one, which turns codes into numbers half as often.
constexpr int kTokens = 4;
constexpr int kMostSums = HWY_MAX_BYTES >= 64 ? 16 : 8;
constexpr int kManyTokens = HWY_MAX_BYTES >= 64 ? 8 : 0;

// Whether products of bytes take the place of fp32's.
constexpr bool takes_bytes(int bits) { return HWY_TARGET == HWY_AVX2 && bits == 4; }

template <class T>
void prepare(const QuantizedGemv& call, float* rows) {
  if (takes_bytes(call.w.bits)) return byte_planes_prepare(call, rows);
  const DF d;
  const QuantizedMatrix& w = call.w;
  const QuantizedRows layout(w);
  for (int64_t i = 0; i < call.m; ++i) {
    const T* x = static_cast<const T*>(call.x) + i * w.k;
    float* row = rows + i * layout.stride;
    simd::for_vectors(w.k, [&](int64_t l, auto count) DS_SIMD_BODY {
      simd::store_n(simd::load_n(d, x + l, count), d, row + l, count);
    });
    std::fill(row + w.k, row + w.padded_k(), 0.0f);
    for (int64_t g = 0; g < w.groups(); ++g) {
      const int64_t begin = g * w.group_length();
      const int64_t length = std::min(w.group_length(), w.padded_k() - begin);
      row[layout.sums + g] = simd::sum_over(length, [&](int64_t l, auto count) DS_SIMD_BODY {
        return simd::load_n(d, row + begin + l, count);
      });
    }
  }
}

HWY_INLINE VF load_bias(const QuantizedGemv& call, int64_t j, int64_t count) {
  const DF d;
  if (call.bias == nullptr) return hn::Zero(d);
  switch (call.type) {
    case FloatType::kBFloat16:
      return simd::load_n(d, static_cast<const bfloat16*>(call.bias) + j, count);
    case FloatType::kFloat16:
      return simd::load_n(d, static_cast<const float16*>(call.bias) + j, count);
    default:
      return simd::load_n(d, static_cast<const float*>(call.bias) + j, count);
  }
}

HWY_INLINE void store_result(const QuantizedGemv& call, VF v, int64_t at, int64_t count) {
  const DF d;
  switch (call.out) {
    case FloatType::kBFloat16:
      return simd::store_n(v, d, static_cast<bfloat16*>(call.y) + at, count);
    case FloatType::kFloat16:
      return simd::store_n(v, d, static_cast<float16*>(call.y) + at, count);
    default:
      return simd::store_n(v, d, static_cast<float*>(call.y) + at, count);
  }
}

// kP slices, each of kSliceRows rows of w, against kT rows of x.
template <Codes kCodes, int kP, int kT>
HWY_INLINE void slices(const QuantizedGemv& call, const float* rows, int64_t first_slice,
                       int64_t token) {
  const DF d;
  const QuantizedMatrix& w = call.w;
  const QuantizedRows layout(w);
  const VF table = code_table<kCodes>(d);
  const uint8_t* slice[kP];
  int64_t scale_at[kP];
  VF total[kP][kT];
#pragma GCC unroll 2
  for (int p = 0; p < kP; ++p) {
    const int64_t panel = (first_slice + p) / kSlices, s = (first_slice + p) % kSlices;
    slice[p] = w.codes + panel * w.panel_bytes() + s * kSliceRows * (kCodes == Codes::k8 ? 1 : 4);
    scale_at[p] = panel * w.groups() * kPanelRows + s * kSliceRows;
#pragma GCC unroll 8
    for (int t = 0; t < kT; ++t) total[p][t] = hn::Zero(d);
  }
  // The slices that follow are fetched while these are multiplied, their scales too: a group's lie
  // alone between its codes, where the processor foresees no stream.
  const int64_t groups = w.groups(), length = w.group_length(), padded = w.padded_k();
  const int64_t ahead = w.panel_bytes() * kP / kSlices;
  const int64_t scales_ahead = groups * kPanelRows * kP / kSlices;
  const float* x = rows + token * layout.stride;
  for (int64_t g = 0; g < groups; ++g) {
    VF sum[kP][2][kT];  // over even and odd elements: twice as many independent chains
#pragma GCC unroll 2
    for (int p = 0; p < kP; ++p) {
#pragma GCC unroll 8
      for (int t = 0; t < kT; ++t) sum[p][0][t] = sum[p][1][t] = hn::Zero(d);
    }
    const int64_t begin = g * length, end = std::min(begin + length, padded);
    for (int64_t l = begin; l < end; l += 8) {
#pragma GCC unroll 2
      for (int p = 0; p < kP; ++p) {
        constexpr int64_t kBlock = kPanelRows * (kCodes == Codes::k8 ? 8 : 4);  // bytes
        for (int64_t line = 0; line < kBlock; line += 64) {
          __builtin_prefetch(slice[p] + ahead + l / 8 * kBlock + line);
        }
        for_block<kCodes>(d, slice[p], l / 8, table, [&](int e, VF code) DS_SIMD_BODY {
#pragma GCC unroll 8
          for (int t = 0; t < kT; ++t) {
            VF& into = sum[p][e % 2][t];
            into = hn::MulAdd(code, hn::Set(d, x[t * layout.stride + l + e]), into);
          }
        });
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < kP; ++p) {
      const int64_t at = scale_at[p] + g * kPanelRows;
      __builtin_prefetch(w.scales + at + scales_ahead);
      if constexpr (kCodes == Codes::k4Minima) __builtin_prefetch(w.minimum + at + scales_ahead);
      const VF scale = simd::load(d, w.scales + at);
#pragma GCC unroll 8
      for (int t = 0; t < kT; ++t) {
        VF both = hn::Add(sum[p][0][t], sum[p][1][t]);
        const VF all = hn::Set(d, x[t * layout.stride + layout.sums + g]);
        if constexpr (kExcess<kCodes> != 0) {
          both = hn::NegMulAdd(hn::Set(d, kExcess<kCodes>), all, both);
        }
        total[p][t] = hn::MulAdd(scale, both, total[p][t]);
        if constexpr (kCodes == Codes::k4Minima) {
          total[p][t] = hn::MulAdd(simd::load(d, w.minimum + at), all, total[p][t]);
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < kP; ++p) {
    const int64_t j = (first_slice + p) * kSliceRows;
    const int64_t count = std::min(kSliceRows, w.n - j);
    if (count <= 0) return;
    const VF bias = load_bias(call, j, count);
#pragma GCC unroll 8
    for (int t = 0; t < kT; ++t) {
      store_result(call, hn::Add(total[p][t], bias), (token + t) * w.n + j, count);
    }
  }
}

// The same for a panel by products of bytes.
void byte_panel(const QuantizedGemv& call, const float* rows, int64_t panel, int64_t token,
                int tokens) {
  const DF d;
  HWY_ALIGN float sums[kMostByteTokens * kPanelRows];
  byte_planes_sums(call, rows, panel, token, tokens, sums);
  for (int64_t j = 0; j < kPanelRows; j += kSliceRows) {
    const int64_t column = panel * kPanelRows + j, count = std::min(kSliceRows, call.w.n - column);
    if (count <= 0) return;
    const VF bias = load_bias(call, column, count);
    for (int t = 0; t < tokens; ++t) {
      const VF sum = hn::Load(d, sums + t * kPanelRows + j);
      store_result(call, hn::Add(sum, bias), (token + t) * call.w.n + column, count);
    }
  }
}

template <Codes kCodes, int kP, int kT>
HWY_INLINE void tokens(const QuantizedGemv& call, const float* rows, int64_t first_slice,
                       int64_t token) {
  if constexpr (takes_bytes(kCodes == Codes::k8 ? 8 : 4)) {
    static_assert(kP == kSlices);
    byte_panel(call, rows, first_slice / kSlices, token, kT);
  } else if constexpr (2 * kP * kT <= kMostSums) {
    slices<kCodes, kP, kT>(call, rows, first_slice, token);
  } else {
    for (int p = 0; p < kP; ++p) slices<kCodes, 1, kT>(call, rows, first_slice + p, token);
  }
}

template <Codes kCodes, int kP>
void all_tokens(const QuantizedGemv& call, const float* rows, int64_t first_slice) {
  int64_t t = 0;
  if constexpr (kManyTokens > 0) {
    for (; t + kManyTokens <= call.m; t += kManyTokens) {
      tokens<kCodes, kP, kManyTokens>(call, rows, first_slice, t);
    }
  }
  for (; t + kTokens <= call.m; t += kTokens) {
    tokens<kCodes, kP, kTokens>(call, rows, first_slice, t);
  }
  switch (call.m - t) {
    case 1:
      return tokens<kCodes, kP, 1>(call, rows, first_slice, t);
    case 2:
      return tokens<kCodes, kP, 2>(call, rows, first_slice, t);
    case 3:
      return tokens<kCodes, kP, 3>(call, rows, first_slice, t);
    default:
      return;
  }
}

// Panels [begin, end).
template <Codes kCodes>
void run(const QuantizedGemv& call, const float* rows, int64_t begin, int64_t end) {
  int64_t s = begin * kSlices;
  for (; s + 2 <= end * kSlices; s += 2) all_tokens<kCodes, 2>(call, rows, s);
  if constexpr (kSlices % 2 != 0) {
    if (s < end * kSlices) all_tokens<kCodes, 1>(call, rows, s);
  }
}

void prepare_f32(const QuantizedGemv& call, float* rows) { prepare<float>(call, rows); }
void prepare_bf16(const QuantizedGemv& call, float* rows) { prepare<bfloat16>(call, rows); }
void prepare_f16(const QuantizedGemv& call, float* rows) { prepare<float16>(call, rows); }
void run_8(const QuantizedGemv& call, const float* rows, int64_t begin, int64_t end) {
  run<Codes::k8>(call, rows, begin, end);
}
void run_4(const QuantizedGemv& call, const float* rows, int64_t begin, int64_t end) {
  run<Codes::k4>(call, rows, begin, end);
}
void run_4_minima(const QuantizedGemv& call, const float* rows, int64_t begin, int64_t end) {
  run<Codes::k4Minima>(call, rows, begin, end);
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
HWY_EXPORT(run_8);
HWY_EXPORT(run_4);
HWY_EXPORT(run_4_minima);

// Bytes of codes in the shortest chunk that is worth a thread's while.
constexpr int64_t kLeastChunk = 64 << 10;

}  // namespace

void quantized_gemv(const QuantizedGemv& call, ThreadPool& pool) {
  const QuantizedMatrix& w = call.w;
  if (call.m <= 0 || w.n <= 0) return;
  thread_local GrowingBuffer buffer;
  float* rows = buffer.reserve(call.m * std::max(QuantizedRows(w).stride, byte_planes_stride(w)));
  const auto prepare = call.type == FloatType::kBFloat16  ? HWY_DYNAMIC_DISPATCH(prepare_bf16)
                       : call.type == FloatType::kFloat16 ? HWY_DYNAMIC_DISPATCH(prepare_f16)
                                                          : HWY_DYNAMIC_DISPATCH(prepare_f32);
  const auto run = w.bits == 8 ? HWY_DYNAMIC_DISPATCH(run_8)
                   : w.minima  ? HWY_DYNAMIC_DISPATCH(run_4_minima)
                               : HWY_DYNAMIC_DISPATCH(run_4);
  prepare(call, rows);
  const int64_t chunk = gemv_chunk_bytes(w.code_bytes(), pool.threads(), kLeastChunk);
  const int64_t grain = std::max<int64_t>(1, chunk / std::max<int64_t>(1, w.panel_bytes()));
  pool.for_range(w.panels(), (grain + 1) / 2 * 2,
                 [&](int64_t begin, int64_t end) { run(call, rows, begin, end); });
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
