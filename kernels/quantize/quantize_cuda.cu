// Weights to codes on a GPU, with the CPU's bits, and back.
#include <limits>

#include "base/error.h"
#include "kernels/cuda/map.cuh"
#include "kernels/quantize/codes.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// The end of a range, and where it was first: of zeros that differ in sign the CPU keeps that one.
struct Extreme {
  float value;
  int64_t at = std::numeric_limits<int64_t>::max();

  __device__ __forceinline__ void take(float other, int64_t other_at, bool beyond) {
    if (beyond || (other == value && other_at < at)) {
      value = other;
      at = other_at;
    }
  }
  __device__ __forceinline__ Extreme of_lane(int with) const {
    Extreme out;
    out.value = __shfl_xor_sync(kAllLanes, value, with);
    out.at = __shfl_xor_sync(kAllLanes, at, with);
    return out;
  }
};

// A warp has a group of a row. Rows beyond the last are code, scale and minimum 0.
__global__ void __launch_bounds__(kThreads)
    quantize_groups(const QuantizedShape s, const float* w, uint8_t* codes, bfloat16* scales,
                    bfloat16* minimum) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t groups = s.groups();
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int64_t r = index % kPanelRows, g = index / kPanelRows % groups;
  const int64_t panel = index / kPanelRows / groups, row = panel * kPanelRows + r;
  if (panel >= s.panels()) return;
  const int64_t begin = g * s.group_length();
  const int64_t padded_end = std::min(begin + s.group_length(), s.padded_k());
  const int64_t end = row < s.n ? std::min(padded_end, s.k) : begin;
  w += row * s.k;

  Extreme low{std::numeric_limits<float>::infinity()};
  Extreme high{-std::numeric_limits<float>::infinity()};
  for (int64_t l = begin + lane; l < end; l += kWarp) {
    low.take(w[l], l, w[l] < low.value);
    high.take(w[l], l, w[l] > high.value);
  }
  low = warp_combine(low, [](Extreme a, const Extreme& b) {
    a.take(b.value, b.at, b.value < a.value);
    return a;
  });
  high = warp_combine(high, [](Extreme a, const Extreme& b) {
    a.take(b.value, b.at, b.value > a.value);
    return a;
  });

  bfloat16 scale, base;
  if (row < s.n) {
    if (s.minima) {
      const bfloat16 rounded = narrow<bfloat16>(low.value);
      base.bits = bits_not_above(low.value, rounded.bits, widen(rounded));
    }
    scale = narrow<bfloat16>(group_scale(s.bits, s.minima, low.value, high.value, widen(base)));
  }
  if (lane == 0) {
    scales[(panel * groups + g) * kPanelRows + r] = scale;
    if (s.minima) minimum[(panel * groups + g) * kPanelRows + r] = base;
  }
  const CodeRange range = code_range(s.bits, s.minima);
  const float inverse = inverse_of(widen(scale)), wide_base = widen(base);
  uint8_t* const to = codes + panel * s.panel_bytes();
  for (int64_t first = begin + 8 * lane; first < padded_end; first += 8 * kWarp) {
    uint32_t word = 0;
    for (int e = 0; e < 8; ++e) {
      const int64_t l = first + e;
      int32_t code = 0;
      if (l < end) {
        code = nearest_code((w[l] - wide_base) * inverse, range.low, range.high) + range.shift;
      }
      if (s.bits == 8) {
        to[l * kPanelRows + r] = static_cast<uint8_t>(code);
      } else {
        word |= static_cast<uint32_t>(code) << bit_of(e);
      }
    }
    if (s.bits == 4) reinterpret_cast<uint32_t*>(to)[first / 8 * kPanelRows + r] = word;
  }
}

// Rows of w, [n, k].
struct DenseRows {
  float* out;
  int64_t n, k;
  template <int N>
  __device__ __forceinline__ void put(int64_t row, int64_t l, const float (&values)[N]) const {
#pragma unroll
    for (int r = 0; r < N; ++r) {
      if (row + r < n) out[(row + r) * k + l] = values[r];
    }
  }
};

// Rows of w^T, from column `first` of it on, in packs.
template <class T>
struct Columns {
  T* out;
  int64_t first, stride;
  template <int N>
  __device__ __forceinline__ void put(int64_t row, int64_t l, const float (&values)[N]) const {
    store_pack(out + l * stride + row - first, narrow_pack<T, N>(values));
  }
};

// A thread has a pack of codes, of panels from `first` on.
template <Codes kCodes, class To>
__global__ void __launch_bounds__(kThreads)
    dequantize_packs(const QuantizedMatrix w, int64_t first, int64_t packs, int64_t all, To to) {
  using P = CodePack<kCodes>;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= all) return;
  const int64_t panel = first + index / packs, pack = index % packs, l = P::element(pack);
  P from;
  from.load(w, panel, pack, w.groups(), l / w.group_length());
#pragma unroll
  for (int e = 0; e < P::kDepth; ++e) {
    if (l + e >= w.k) break;
    float values[P::kRows];
#pragma unroll
    for (int r = 0; r < P::kRows; ++r) values[r] = from.value(r, e);
    to.put(panel * kPanelRows + P::row(pack), l + e, values);
  }
}

template <class To>
void dequantize_to(const QuantizedMatrix& w, int64_t first, int64_t panels, const To& to,
                   const char* name, const GpuStream& on) {
  check_alignment(w, name);
  const int64_t packs = packs_of_panel(w), all = panels * packs;
  with_codes(w, [&](auto codes) {
    launch(on, name, &dequantize_packs<decltype(codes)::value, To>,
           {(all + kThreads - 1) / kThreads, kThreads}, w, first, packs, all, to);
  });
}

}  // namespace

void quantize(const QuantizedShape& shape, const float* w, uint8_t* codes, bfloat16* scales,
              bfloat16* minimum, const GpuStream& on) {
  if (shape.k == 0) return;
  const int64_t warps = shape.panels() * shape.groups() * kPanelRows;
  launch(on, "quantize", &quantize_groups, {(warps + kWarps - 1) / kWarps, kThreads}, shape, w,
         codes, scales, minimum);
}

void dequantize(const QuantizedMatrix& w, float* out, const GpuStream& on) {
  dequantize_to(w, 0, w.panels(), DenseRows{out, w.n, w.k}, "dequantize", on);
}

void dequantize_panels(const QuantizedMatrix& w, int64_t first, int64_t panels, FloatType type,
                       void* out, const GpuStream& on) {
  with_float_type(type, [&](auto t) {
    using T = decltype(t);
    const Columns<T> to{static_cast<T*>(out), first * kPanelRows, panels * kPanelRows};
    DS_CHECK((packs_fit<kPanelRows>(0, static_cast<const T*>(to.out))), Code::kInvalidArgument,
             "dequantize_panels: on a GPU the output must begin at a multiple of 16 bytes");
    dequantize_to(w, first, panels, to, "dequantize_panels", on);
  });
}

}  // namespace ds::kernels
