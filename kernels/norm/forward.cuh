// Normalisation of rows on a GPU. A row of up to kMostSlots packs for each lane is a warp's, which
// waits for nobody; a wider one, or one of single elements, is a block's. Memory is read and
// written once.
#pragma once

#include "kernels/norm/packs.cuh"

namespace ds::kernels::norm {

// ---- a warp has a row ----

inline constexpr int kRowWarps = 4;  // rows of a block
inline constexpr int kMostSlots = 8;

// s = x + residual, rounded to the type and stored where a sum is wanted.
template <int kSlots, class Call, class T>
__device__ __forceinline__ void take_sum(const Call& call, int64_t at, int lane, Words<T>* s) {
  constexpr int N = kPack<T>;
  for_slots<kSlots, N>(call.cols, lane, kWarp, [&](int slot, int64_t column) {
    s[slot] = load_words(call.x + at + column);
  });
  if (call.residual != nullptr) {
    Words<T> r[kSlots];
    for_slots<kSlots, N>(call.cols, lane, kWarp, [&](int slot, int64_t column) {
      r[slot] = load_words(call.residual + at + column);
    });
    for_slots<kSlots, N>(call.cols, lane, kWarp, [&](int slot, int64_t) {
      float a[N], b[N];
      widen_words(s[slot], a);
      widen_words(r[slot], b);
#pragma unroll
      for (int i = 0; i < N; ++i) a[i] += b[i];
      s[slot] = narrow_words<T>(a);
    });
  } else if (call.sum == nullptr || call.sum == call.x) {
    return;
  }
  for_slots<kSlots, N>(call.cols, lane, kWarp, [&](int slot, int64_t column) {
    store_words(call.sum + at + column, s[slot]);
  });
}

// The sum of term(element) over a row.
template <int kSlots, class T, class Term>
__device__ __forceinline__ float row_sum(int64_t cols, int lane, Words<T>* s, const Term& term) {
  constexpr int N = kPack<T>;
  float total = 0;
  for_slots<kSlots, N>(cols, lane, kWarp, [&](int slot, int64_t) {
    float v[N];
    widen_words(s[slot], v);
#pragma unroll
    for (int i = 0; i < N; ++i) total += term(v[i]);
  });
  widen_again<kSlots>(s);
  return warp_sum(total);
}

template <int kSlots, class Call>
__global__ void __launch_bounds__(kRowWarps* kWarp) forward_warps(Call call) {
  using T = typename Call::Type;
  constexpr int N = kPack<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
  if (row >= call.rows) return;
  const int64_t cols = call.cols, at = row * cols;
  const float count = static_cast<float>(cols);
  Words<T> s[kSlots];
  take_sum<kSlots>(call, at, lane, s);
  float mean = 0;
  if constexpr (Call::kCentred) {
    mean = row_sum<kSlots>(cols, lane, s, [](float v) { return v; }) / count;
  }
  const float squares =
      row_sum<kSlots>(cols, lane, s, [mean](float v) { return (v - mean) * (v - mean); });
  const float rstd = 1.0f / sqrtf(squares / count + call.eps);
  for_slots<kSlots, N>(cols, lane, kWarp, [&](int slot, int64_t column) {
    float gamma[N], values[N];
    load_wide<N>(call.gamma + column, gamma);
    widen_words(s[slot], values);
    if constexpr (Call::kCentred) {
      float beta[N];
      load_wide<N>(call.beta + column, beta);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = (values[i] - mean) * rstd * gamma[i] + beta[i];
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = values[i] * rstd * gamma[i];
    }
    store_narrow<N>(call.y + at + column, values);
  });
  if (lane == 0) {
    if constexpr (Call::kCentred) call.mean[row] = mean;
    call.rstd[row] = rstd;
  }
}

// ---- a block has a row ----

template <int N, class Call>
__global__ void __launch_bounds__(kMostThreads) forward_rows(Call call) {
  __shared__ float partial[kMostWarps];
  const int64_t row = blockIdx.x, cols = call.cols, at = row * cols;
  const float count = static_cast<float>(cols);
  float kept[kKept], s[N];
  float total = 0;
  for_packs<N>(cols, [&](int slot, int64_t column) {
    load_sum<N>(call, at + column, kept + slot);
#pragma unroll
    for (int i = 0; i < N; ++i)
      total += Call::kCentred ? kept[slot + i] : kept[slot + i] * kept[slot + i];
  });
  for_rest<N>(cols, [&](int64_t column) {
    load_sum<N>(call, at + column, s);
#pragma unroll
    for (int i = 0; i < N; ++i) total += Call::kCentred ? s[i] : s[i] * s[i];
  });
  total = block_sum(total, partial);
  float mean = 0, squares = total;
  if constexpr (Call::kCentred) {
    mean = total / count;
    squares = 0;
    for_packs<N>(cols, [&](int slot, int64_t) {
#pragma unroll
      for (int i = 0; i < N; ++i) squares += (kept[slot + i] - mean) * (kept[slot + i] - mean);
    });
    for_rest<N>(cols, [&](int64_t column) {
      reload_sum<N>(call, at + column, s);
#pragma unroll
      for (int i = 0; i < N; ++i) squares += (s[i] - mean) * (s[i] - mean);
    });
    squares = block_sum(squares, partial);
  }
  const float rstd = 1.0f / sqrtf(squares / count + call.eps);
  const auto write = [&](int64_t column, float* values) {
    float gamma[N];
    load_wide<N>(call.gamma + column, gamma);
    if constexpr (Call::kCentred) {
      float beta[N];
      load_wide<N>(call.beta + column, beta);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = (values[i] - mean) * rstd * gamma[i] + beta[i];
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = values[i] * rstd * gamma[i];
    }
    store_narrow<N>(call.y + at + column, values);
  };
  for_packs<N>(cols, [&](int slot, int64_t column) { write(column, kept + slot); });
  for_rest<N>(cols, [&](int64_t column) {
    reload_sum<N>(call, at + column, s);
    write(column, s);
  });
  if (threadIdx.x == 0) {
    if constexpr (Call::kCentred) call.mean[row] = mean;
    call.rstd[row] = rstd;
  }
}

}  // namespace ds::kernels::norm
