// Block-wise 8-bit numbers with a dynamic map (Dettmers et al., arXiv:2110.02861), for optimizer
// states: each block of 256 has the largest magnitude as its scale, and a code stands for a
// fraction of it.
//
// Codes c = 1, 2, ... fall into decades: c with highest bit 2^e lies in (10^(e-T-1), 10^(e-T)],
// which is cut into 2^e equal parts, and stands for the middle of its part. T is 6 for signed
// numbers (codes to 127 of either sign) and 7 for unsigned ones (codes to 255). The last code is
// exactly 1, so that the scale is kept and coding what was decoded changes nothing. Code 0 is
// zero; unsigned numbers above zero never become zero, since a second moment that vanishes while
// the first one does not would make a huge step.
//
// Included once per instruction set, after simd-inl.h, inside kernel files.
#if defined(DS_KERNELS_QUANTIZE8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_QUANTIZE8_INL_H_
#undef DS_KERNELS_QUANTIZE8_INL_H_
#else
#define DS_KERNELS_QUANTIZE8_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "kernels/optimizer/dynamic_map.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE::quantize8 {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;

template <bool kSigned>
inline constexpr DynamicMap kMap = make_dynamic_map(kSigned ? 6 : 7);

// Vectors of fewer than 8 lanes cannot hold the tables; they take the scalar code. Those of 16
// lanes hold one by the exponent of what is coded. All three choose the same codes.
#if HWY_TARGET <= HWY_AVX3

template <bool kSigned>
inline constexpr DynamicSlots kSlots = make_dynamic_slots(kMap<kSigned>, kSigned);

template <bool kSigned>
struct Decoder {
  const DF d;
  const DI di;
  const VF scale = hn::LoadU(d, kSlots<kSigned>.scale);
  const VF offset = hn::LoadU(d, kSlots<kSigned>.offset);
  const VI top = hn::Set(di, kMap<kSigned>.codes);

  // The fraction that a code from 0 on stands for.
  HWY_INLINE VF fraction(VI code) const {
    const VF number = hn::ConvertTo(d, code);
    const __m512i exponent = hn::ShiftRight<23>(hn::BitCast(di, number)).raw;
    const __mmask16 nonzero = _mm512_test_epi32_mask(code.raw, code.raw);
    const __m512 value =
        _mm512_maskz_fmadd_ps(nonzero, _mm512_permutexvar_ps(exponent, scale.raw), number.raw,
                              _mm512_permutexvar_ps(exponent, offset.raw));
    return VF{_mm512_mask_mov_ps(value, _mm512_cmpeq_epi32_mask(code.raw, top.raw),
                                 hn::Set(d, 1.0f).raw)};
  }
};

template <bool kSigned>
struct Encoder {
  const DF d;
  const DI di;
  const VI slot_low = hn::LoadU(di, kSlots<kSigned>.slot);
  const VI slot_high = hn::LoadU(di, kSlots<kSigned>.slot + 16);
  const VF next_low = hn::LoadU(d, kSlots<kSigned>.next);
  const VF next_high = hn::LoadU(d, kSlots<kSigned>.next + 16);
  const VF scale = hn::LoadU(d, kSlots<kSigned>.code_scale);
  const VF offset = hn::LoadU(d, kSlots<kSigned>.code_offset);
  const VF last = hn::LoadU(d, kSlots<kSigned>.last);

  // The code nearest to a fraction from 0 to 1.
  HWY_INLINE VI code(VF given) const {
    const VF x = hn::Max(given, hn::Set(d, 0x1p-31f));
    const __m512i exponent = hn::ShiftRight<23>(hn::BitCast(di, x)).raw;
    const __m512 next = _mm512_permutex2var_ps(next_low.raw, exponent, next_high.raw);
    const __m512i begin = _mm512_permutex2var_epi32(slot_low.raw, exponent, slot_high.raw);
    const __m512i slot = _mm512_mask_add_epi32(begin, _mm512_cmp_ps_mask(x.raw, next, _CMP_GE_OQ),
                                               begin, _mm512_set1_epi32(1));
    VF place = hn::MulAdd(x, VF{_mm512_permutexvar_ps(slot, scale.raw)},
                          VF{_mm512_permutexvar_ps(slot, offset.raw)});
    place = hn::Min(place, VF{_mm512_permutexvar_ps(slot, last.raw)});
    if constexpr (!kSigned) {
      // Below the first decade too the first code is nearest but for zero itself.
      place = hn::Max(place, hn::Set(d, 1.0f));
      place = hn::IfThenElseZero(hn::Gt(given, hn::Zero(d)), place);
    }
    return VI{_mm512_cvttps_epi32(place.raw)};
  }
};

#elif HWY_MAX_BYTES >= 32

template <bool kSigned>
struct Decoder {
  const DF d;
  const DI di;
  const VF scale = hn::LoadU(d, kMap<kSigned>.scale), offset = hn::LoadU(d, kMap<kSigned>.offset);
  const VI top = hn::Set(di, kMap<kSigned>.codes);

  // The fraction that a code from 0 on stands for.
  HWY_INLINE VF fraction(VI code) const {
    const auto bits = hn::BitCast(di, hn::ConvertTo(d, code));
    const VI exponent = hn::Max(hn::Sub(hn::ShiftRight<23>(bits), hn::Set(di, 127)), hn::Zero(di));
    const VF mantissa =
        hn::BitCast(d, hn::Or(hn::And(bits, hn::Set(di, 0x007FFFFF)), hn::Set(di, 0x3F800000)));
    const auto index = hn::IndicesFromVec(d, exponent);
    VF value = hn::MulAdd(hn::TableLookupLanes(scale, index), mantissa,
                          hn::TableLookupLanes(offset, index));
    value = hn::IfThenElse(hn::RebindMask(d, hn::Eq(code, top)), hn::Set(d, 1.0f), value);
    return hn::IfThenZeroElse(hn::RebindMask(d, hn::Eq(code, hn::Zero(di))), value);
  }
};

template <bool kSigned>
struct Encoder {
  const DF d;
  const DI di;
  const VF scale = hn::LoadU(d, kMap<kSigned>.code_scale);
  const VF offset = hn::LoadU(d, kMap<kSigned>.code_offset);
  const VF threshold = hn::LoadU(d, kMap<kSigned>.threshold);

  // Adds `bit` to the exponent where x has reached that threshold.
  HWY_INLINE VI next_bit(VF x, VI exponent, int bit) const {
    const VI candidate = hn::Add(exponent, hn::Set(di, bit));
    const VF bound = hn::TableLookupLanes(threshold, hn::IndicesFromVec(d, candidate));
    return hn::IfThenElse(hn::RebindMask(di, hn::Ge(x, bound)), candidate, exponent);
  }

  // The code nearest to a fraction from 0 to 1.
  HWY_INLINE VI code(VF x) const {
    constexpr const DynamicMap& map = kMap<kSigned>;
    // The number of thresholds that x has reached, by binary search.
    const VI at_four = hn::BitCast(di, hn::IfThenElseZero(hn::Ge(x, hn::Set(d, map.threshold[4])),
                                                          hn::BitCast(d, hn::Set(di, 4))));
    VI exponent = next_bit(x, at_four, 2);
    exponent = next_bit(x, exponent, 1);
    const auto index = hn::IndicesFromVec(d, exponent);
    const VF place =
        hn::MulAdd(x, hn::TableLookupLanes(scale, index), hn::TableLookupLanes(offset, index));
    const VF low =
        hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(exponent, hn::Set(di, 127))));  // 2^exponent
    VF high = hn::Sub(hn::Add(low, low), hn::Set(d, 1.0f));
    high = hn::Min(high, hn::Set(d, static_cast<float>(map.codes - 1)));
    VF c = hn::Min(hn::Max(hn::Floor(place), low), high);
    c = hn::IfThenElse(hn::Ge(x, hn::Set(d, map.top_threshold)),
                       hn::Set(d, static_cast<float>(map.codes)), c);
    const auto zero = kSigned ? hn::Lt(x, hn::Set(d, map.zero_threshold)) : hn::Le(x, hn::Zero(d));
    return hn::ConvertTo(di, hn::IfThenZeroElse(zero, c));
  }
};

#endif

#undef DS_QUANTIZE8_VECTORS
#if HWY_MAX_BYTES >= 32
#define DS_QUANTIZE8_VECTORS 1

// One vector's codes to numbers.
template <bool kSigned>
HWY_INLINE VF decode_vector(const Decoder<kSigned>& decoder, const uint8_t* codes, VF block_scale) {
  const DF d;
  const DI di;
  const hn::Rebind<std::conditional_t<kSigned, int8_t, uint8_t>, DF> d8;
  const VI code =
      hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const hn::TFromD<decltype(d8)>*>(codes)));
  const VF value = hn::Mul(decoder.fraction(kSigned ? hn::Abs(code) : code), block_scale);
  if constexpr (!kSigned) return value;
  return hn::Xor(value, hn::And(hn::BitCast(d, code), hn::BitCast(d, hn::Set(di, INT32_MIN))));
}

// One vector's numbers to codes; `inverse` is that of the block's scale.
template <bool kSigned>
HWY_INLINE void encode_vector(const Encoder<kSigned>& encoder, VF value, VF inverse,
                              uint8_t* codes) {
  const DF d;
  const DI di;
  const hn::Rebind<uint8_t, DF> d8;
  const hn::RebindToUnsigned<DF> d32;
  VI code = encoder.code(hn::Mul(kSigned ? hn::Abs(value) : value, inverse));
  if constexpr (kSigned) {
    code = hn::IfThenElse(hn::RebindMask(di, hn::Lt(value, hn::Zero(d))),
                          hn::Sub(hn::Zero(di), code), code);
  }
  hn::StoreU(hn::TruncateTo(d8, hn::BitCast(d32, code)), d8, codes);
}
#else
#define DS_QUANTIZE8_VECTORS 0
#endif

// The scale of a block by its largest magnitude. Below the smallest normal number the reciprocal
// may be infinite: such a block is zero.
inline float scale_of(float largest) { return largest >= 0x1p-126f ? largest : 0; }
inline float inverse_of(float scale) { return scale > 0 ? 1 / scale : 0; }

// Codes to numbers; `values` has room for whole vectors.
template <bool kSigned>
void decode(const uint8_t* codes, int64_t n, float block_scale, float* values) {
  int64_t i = 0;
#if DS_QUANTIZE8_VECTORS
  const Decoder<kSigned> decoder{};
  const DF d;
  const VF scale = hn::Set(d, block_scale);
  for (; i + simd::lanes() <= n; i += simd::lanes()) {
    hn::StoreU(decode_vector(decoder, codes + i, scale), d, values + i);
  }
#endif
  for (; i < n; ++i) values[i] = decode_one(kMap<kSigned>, kSigned, codes[i]) * block_scale;
}

// Numbers to codes; returns the block's scale, its largest magnitude.
template <bool kSigned>
float encode(const float* values, int64_t n, uint8_t* codes) {
  const DF d;
  float largest = 0;
  int64_t i = 0;
  VF most = hn::Zero(d);
  for (; i + simd::lanes() <= n; i += simd::lanes()) {
    most = hn::Max(most, hn::Abs(hn::LoadU(d, values + i)));
  }
  largest = simd::max_of_lanes(d, most);
  for (; i < n; ++i) largest = std::fmax(largest, std::fabs(values[i]));
  largest = scale_of(largest);
  const float inverse = inverse_of(largest);
  i = 0;
#if DS_QUANTIZE8_VECTORS
  const Encoder<kSigned> encoder{};
  const VF factor = hn::Set(d, inverse);
  for (; i + simd::lanes() <= n; i += simd::lanes()) {
    encode_vector(encoder, hn::LoadU(d, values + i), factor, codes + i);
  }
#endif
  for (; i < n; ++i) codes[i] = encode_one(kMap<kSigned>, kSigned, values[i] * inverse);
  return largest;
}

}  // namespace ds::kernels::HWY_NAMESPACE::quantize8
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
