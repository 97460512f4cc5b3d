// Quantised weights in device code: 16 bytes of a panel at a time, and the numbers that they stand
// for.
#pragma once

#include "base/error.h"
#include "kernels/cuda/device.cuh"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/rounding.h"

namespace ds::kernels::cuda {

enum class Codes { k8, k4, k4Minima };

// Calls fn with the form of w's codes, as a std::integral_constant.
template <class Fn>
void with_codes(const QuantizedShape& w, const Fn& fn) {
  if (w.bits == 8) {
    fn(std::integral_constant<Codes, Codes::k8>());
  } else if (w.minima) {
    fn(std::integral_constant<Codes, Codes::k4Minima>());
  } else {
    fn(std::integral_constant<Codes, Codes::k4>());
  }
}

// A pack is kRows rows, kDepth elements of each; kAcross of them lie side by side in a panel.
template <Codes kCodes>
struct CodePack {
  static constexpr int kRows = kCodes == Codes::k8 ? 16 : 4, kDepth = kCodes == Codes::k8 ? 1 : 8;
  static constexpr int kAcross = static_cast<int>(kPanelRows) / kRows;

  static __device__ __forceinline__ int row(int64_t pack) {
    return static_cast<int>(pack % kAcross) * kRows;
  }
  static __device__ __forceinline__ int64_t element(int64_t pack) {
    return pack / kAcross * kDepth;
  }

  Pack<uint32_t, 4> codes;
  Pack<bfloat16, kRows> scales, minimum;

  // `pack` is counted from the panel's first and lies in group `group`.
  __device__ __forceinline__ void load(const QuantizedMatrix& w, int64_t panel, int64_t pack,
                                       int64_t groups, int64_t group) {
    codes = load_pack<uint32_t, 4>(
        reinterpret_cast<const uint32_t*>(w.codes + panel * w.panel_bytes()) + pack * 4);
    const int64_t at = (panel * groups + group) * kPanelRows + row(pack);
    scales = load_pack<bfloat16, kRows>(w.scales + at);
    if constexpr (kCodes == Codes::k4Minima) minimum = load_pack<bfloat16, kRows>(w.minimum + at);
  }

  // Element e of row r of the pack: what QuantizedMatrix::at gives. Products are exact.
  __device__ __forceinline__ float value(int r, int e) const {
    const float scale = widen(scales.at[r]);
    if constexpr (kCodes == Codes::k8) {
      const auto code = static_cast<int8_t>(codes.at[r / 4] >> 8 * (r % 4));
      return static_cast<float>(code) * scale;
    } else {
      const auto code = static_cast<int>(codes.at[r] >> bit_of(e) & 15u);
      if constexpr (kCodes == Codes::k4Minima) {
        return fmaf(static_cast<float>(code), scale, widen(minimum.at[r]));
      } else {
        return static_cast<float>(code - 8) * scale;
      }
    }
  }
};

// Packs of a panel.
inline int64_t packs_of_panel(const QuantizedShape& w) { return w.panel_bytes() / 16; }

// What CodePack::load wants of a matrix.
inline void check_alignment(const QuantizedMatrix& w, const char* name) {
  DS_CHECK((packs_fit<16>(0, w.codes) && packs_fit<8>(0, w.scales, w.minimum)),
           Code::kInvalidArgument, name,
           ": on a GPU codes, scales and minima must begin at multiples of 16 bytes");
}

}  // namespace ds::kernels::cuda
