// Vectors of codes as fp32: 16 rows side by side, or as many as a vector holds. Compiled once per
// instruction set; include after kernels/simd-inl.h.
#include <cstdint>
#include <type_traits>

#include "kernels/quantize/quantize.h"

#if defined(DS_KERNELS_QUANTIZE_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_QUANTIZE_CODES_INL_H_
#undef DS_KERNELS_QUANTIZE_CODES_INL_H_
#else
#define DS_KERNELS_QUANTIZE_CODES_INL_H_
#endif

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

// A panel is cut into slices of as many rows as a vector holds.
inline constexpr int64_t kSliceRows = HWY_MAX_BYTES / static_cast<int64_t>(sizeof(float));
inline constexpr int64_t kSlices = kPanelRows / kSliceRows;
static_assert(kSliceRows <= kPanelRows);

// Signed bytes.
HWY_INLINE VF load_codes8(DF d, const uint8_t* p) {
  const hn::Rebind<int8_t, DF> d8;
  const hn::RebindToSigned<DF> d32;
  return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
}

// How codes become numbers: signed bytes, four bits, four bits with minima.
enum class Codes { k8, k4, k4Minima };

// What must be taken from vectors of kCodes for the numbers that the scale multiplies.
template <Codes kCodes>
inline constexpr float kExcess = kCodes == Codes::k4&& HWY_TARGET > HWY_AVX3 ? 8.0f : 0.0f;

// Calls body(e, vector) for the eight elements e of block c of a slice that begins at `slice`.
template <Codes kCodes, class Body>
HWY_INLINE void for_block(DF d, const uint8_t* slice, int64_t c, VF table, const Body& body) {
  if constexpr (kCodes == Codes::k8) {
    const uint8_t* p = slice + c * 8 * kPanelRows;
#pragma GCC unroll 8
    for (int e = 0; e < 8; ++e) body(e, load_codes8(d, p + e * kPanelRows));
  } else {
    const hn::RebindToUnsigned<DF> du;
    const auto words = hn::LoadU(du, reinterpret_cast<const uint32_t*>(slice + c * 4 * kPanelRows));
    const auto element = [&](auto shift) DS_SIMD_BODY {
      constexpr int kShift = decltype(shift)::value;
      const auto moved = hn::ShiftRight<kShift>(words);
#if HWY_TARGET <= HWY_AVX3
      // A permutation reads four bits of each index: the others need no mask.
      body(kShift % 16 / 2 + kShift / 16, VF{_mm512_permutexvar_ps(moved.raw, table.raw)});
#else
      (void)table;
      const auto nibble = hn::And(moved, hn::Set(du, 15u));
      body(kShift % 16 / 2 + kShift / 16,
           hn::ConvertTo(d, hn::BitCast(hn::RebindToSigned<DF>(), nibble)));
#endif
    };
    element(std::integral_constant<int, 0>());
    element(std::integral_constant<int, 16>());
    element(std::integral_constant<int, 4>());
    element(std::integral_constant<int, 20>());
    element(std::integral_constant<int, 8>());
    element(std::integral_constant<int, 24>());
    element(std::integral_constant<int, 12>());
    element(std::integral_constant<int, 28>());
  }
}

// What for_block looks numbers up in.
template <Codes kCodes>
HWY_INLINE VF code_table(DF d) {
  return kCodes == Codes::k4 ? hn::Iota(d, -8.0f) : hn::Iota(d, 0.0f);
}

}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
