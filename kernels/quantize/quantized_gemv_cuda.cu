// quantized_gemv on a GPU: a block has a panel. Its threads read the codes 16 bytes at a time, make
// fp32 of them in registers and multiply; then lanes, then warps, add up in an order that follows
// from k alone.
#include "kernels/cuda/map.cuh"
#include "kernels/gemv/put.cuh"
#include "kernels/quantize/codes.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kAhead = 2;  // packs that a thread loads before it works on them

// Elements [l, l + kDepth) of a row of k; zeros beyond its end.
template <bool kWide, int kDepth, class T>
__device__ __forceinline__ void load_x(const T* row, int64_t l, int64_t k, float* to) {
  if constexpr (kWide && kDepth > 1) {
    widen_pack(load_pack<T, kDepth>(row + l), to);
  } else {
#pragma unroll
    for (int e = 0; e < kDepth; ++e) to[e] = l + e < k ? widen(row[l + e]) : 0.0f;
  }
}

// Adds up v over the lanes whose packs have the same rows. The lanes of either half of kLanes keep
// one half of the rows and give the other away, and so on: in the end each has one sum, v[0], of
// the row that it returns.
template <int kRows, int kLanes, int kAcross>
__device__ __forceinline__ int share_sums(float* v, int lane) {
  if constexpr (kLanes == kAcross) {
    return 0;
  } else if constexpr (kRows == 1) {
    v[0] += __shfl_xor_sync(kAllLanes, v[0], kLanes / 2);
    return share_sums<1, kLanes / 2, kAcross>(v, lane);
  } else {
    constexpr int kHalf = kRows / 2;
    const bool upper = (lane & kLanes / 2) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float mine = upper ? v[i + kHalf] : v[i], other = upper ? v[i] : v[i + kHalf];
      v[i] = mine + __shfl_xor_sync(kAllLanes, other, kLanes / 2);
    }
    return (upper ? kHalf : 0) + share_sums<kHalf, kLanes / 2, kAcross>(v, lane);
  }
}

template <Codes kCodes, class T, int kTokens, bool kWide>
__global__ void __launch_bounds__(kThreads)
    multiply_panel(const QuantizedGemv call, int64_t packs, int64_t groups) {
  using P = CodePack<kCodes>;
  __shared__ float partial[kTokens][kWarps][kPanelRows];
  const QuantizedMatrix& w = call.w;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int64_t panel = blockIdx.x, first = int64_t{blockIdx.y} * kTokens, k = w.k;
  const T* x[kTokens];  // of what lies beyond the last row nothing is stored
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    x[t] = static_cast<const T*>(call.x) + (first + t < call.m ? first + t : first) * k;
  }
  float sums[kTokens][P::kRows] = {};

  // The group of the thread's next pack, and how many elements of it lie before that.
  const auto length = static_cast<unsigned>(std::max<int64_t>(1, w.group_length()));
  constexpr unsigned kStep = kThreads / P::kAcross * P::kDepth;
  const auto begin = static_cast<unsigned>(P::element(thread));
  unsigned group = begin / length, inside = begin % length;
  const unsigned step_groups = kStep / length, step_inside = kStep % length;
  for (int64_t pack = thread; pack < packs; pack += kAhead * kThreads) {
    P codes[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (pack + u * kThreads < packs) codes[u].load(w, panel, pack + u * kThreads, groups, group);
      group += step_groups;
      inside += step_inside;
      if (inside >= length) {
        inside -= length;
        ++group;
      }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (pack + u * kThreads >= packs) break;
      const int64_t l = P::element(pack + u * kThreads);
      float in[kTokens][P::kDepth];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) load_x<kWide, P::kDepth>(x[t], l, k, in[t]);
#pragma unroll
      for (int e = 0; e < P::kDepth; ++e) {
#pragma unroll
        for (int r = 0; r < P::kRows; ++r) {
          const float weight = codes[u].value(r, e);
#pragma unroll
          for (int t = 0; t < kTokens; ++t) sums[t][r] = fmaf(weight, in[t][e], sums[t][r]);
        }
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const int row = share_sums<P::kRows, kWarp, P::kAcross>(sums[t], lane);
    partial[t][warp][P::row(lane) + row] = sums[t][0];  // two lanes bring the same
  }
  __syncthreads();
  const int t = thread / static_cast<int>(kPanelRows), r = thread % static_cast<int>(kPanelRows);
  const int64_t j = panel * kPanelRows + r;
  if (t >= kTokens || first + t >= call.m || j >= w.n) return;
  float sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += partial[t][i][r];
  put<T>(call.out, call.y, (first + t) * w.n + j, call.bias, j, sum);
}

}  // namespace

void quantized_gemv(const QuantizedGemv& call, const GpuStream& on) {
  const QuantizedMatrix& w = call.w;
  if (call.m <= 0 || w.n <= 0) return;
  check_alignment(w, "quantized_gemv");
  const int64_t packs = packs_of_panel(w), groups = w.groups();
  with_float_type(call.type, [&](auto type) {
    using T = decltype(type);
    const bool wide = packs_fit<8>(w.k, static_cast<const T*>(call.x));
    with_tokens(call.m, [&](auto tokens) {
      constexpr int kTokens = decltype(tokens)::value;
      const Grid grid{w.panels(), kThreads, 0, (call.m + kTokens - 1) / kTokens};
      with_codes(w, [&](auto codes) {
        constexpr Codes kCodes = decltype(codes)::value;
        // Bytes are multiplied with single elements of x.
        if (kCodes != Codes::k8 && wide) {
          launch(on, "quantized_gemv", &multiply_panel<kCodes, T, kTokens, kCodes != Codes::k8>,
                 grid, call, packs, groups);
        } else {
          launch(on, "quantized_gemv", &multiply_panel<kCodes, T, kTokens, false>, grid, call,
                 packs, groups);
        }
      });
    });
  });
}

}  // namespace ds::kernels
