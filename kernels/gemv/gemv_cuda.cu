// gemv on a GPU: a warp has two rows of w and reads them once, 16 bytes per lane and several of
// those under way. A lane's elements follow from k alone, so that sums do too.
#include <type_traits>

#include "kernels/cuda/map.cuh"
#include "kernels/gemv/gemv.h"
#include "kernels/gemv/put.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kRows = 2;   // of w that a warp has
constexpr int kAhead = 4;  // packs of a row that a lane loads before it works on them

// Elements [at, at + N) of a row of k; zeros beyond its end, where rows are not read in packs.
template <bool kWide, int N, class T>
__device__ __forceinline__ Pack<T, N> load_part(const T* row, int64_t at, int64_t k) {
  if constexpr (kWide) {
    return load_pack<T, N>(row + at);
  } else {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.at[i] = at + i < k ? row[at + i] : T{};
    return pack;
  }
}

template <class T, int kTokens, bool kWide>
__global__ void __launch_bounds__(kThreads) multiply_few(Gemv call) {
  constexpr int N = kPack<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t j = (int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp) * kRows;
  if (j >= call.n) return;
  const int64_t k = call.k, first = int64_t{blockIdx.y} * kTokens;
  // What lies beyond the last row is computed from it and not stored.
  const T *w[kRows], *x[kTokens];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    w[r] = static_cast<const T*>(call.w) + (j + r < call.n ? j + r : j) * k;
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    x[t] = static_cast<const T*>(call.x) + (first + t < call.m ? first + t : first) * k;
  }
  float sums[kRows * kTokens] = {};
  constexpr int64_t kStep = int64_t{kWarp} * N;
  for (int64_t at = int64_t{lane} * N; at < k; at += kAhead * kStep) {
    Pack<T, N> weights[kAhead][kRows];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (at + u * kStep < k) weights[u][r] = load_part<kWide, N>(w[r], at + u * kStep, k);
      }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (at + u * kStep >= k) break;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        float in[N];
        widen_pack(load_part<kWide, N>(x[t], at + u * kStep, k), in);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int i = 0; i < N; ++i) {
            float& sum = sums[r * kTokens + t];
            sum = fmaf(widen(weights[u][r].at[i]), in[i], sum);
          }
        }
      }
    }
  }
  warp_sums(sums);
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (lane == t * kRows + r && first + t < call.m && j + r < call.n) {
        put<T>(call.out, call.y, (first + t) * call.n + j + r, call.bias, j + r,
               sums[r * kTokens + t]);
      }
    }
  }
}

}  // namespace

void gemv(const Gemv& call, const GpuStream& on) {
  if (call.m <= 0 || call.n <= 0) return;
  constexpr int64_t kOfBlock = int64_t{kWarps} * kRows;
  with_float_type(call.type, [&](auto type) {
    using T = decltype(type);
    const bool wide =
        packs_fit<kPack<T>>(call.k, static_cast<const T*>(call.x), static_cast<const T*>(call.w));
    with_tokens(call.m, [&](auto tokens) {
      constexpr int kTokens = decltype(tokens)::value;
      const Grid grid{(call.n + kOfBlock - 1) / kOfBlock, kThreads, 0,
                      (call.m + kTokens - 1) / kTokens};
      if (wide) {
        launch(on, "gemv", &multiply_few<T, kTokens, true>, grid, call);
      } else {
        launch(on, "gemv", &multiply_few<T, kTokens, false>, grid, call);
      }
    });
  });
}

}  // namespace ds::kernels
