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
#include <limits>

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
// lanes hold one by the exponent of what is coded. All three choose the same codes, but that the
// scalar code rounds a product before it adds.
#if HWY_TARGET <= HWY_AVX3

template <bool kSigned>
inline constexpr DynamicSlots kSlots = make_dynamic_slots(kMap<kSigned>, kSigned);

template <bool kSigned>
struct Decoder {
  const DF d;
  const DI di;
  const VF scale = hn::LoadU(d, kSlots<kSigned>.scale);
  const VF offset = hn::LoadU(d, kSlots<kSigned>.offset);

  // The fraction that a code from 0 on stands for.
  HWY_INLINE VF fraction(VI code) const {
    const VF number = hn::ConvertTo(d, code);
    const VF place =
        hn::MulAdd(number, hn::Set(d, kSlots<kSigned>.spread), hn::Set(d, kSlots<kSigned>.apart));
    const __m512i exponent = hn::ShiftRight<23>(hn::BitCast(di, place)).raw;
    return hn::MulAdd(number, VF{_mm512_permutexvar_ps(exponent, scale.raw)},
                      VF{_mm512_permutexvar_ps(exponent, offset.raw)});
  }
};

// The larger of a and the magnitude of b, of which a is not negative.
HWY_INLINE VF larger_magnitude(VF a, VF b) { return VF{_mm512_range_ps(a.raw, b.raw, 0b1011)}; }

template <bool kSigned>
struct Encoder {
  const DF d;
  const DI di;
  const __m512i slot_low = _mm512_loadu_si512(kSlots<kSigned>.slot);
  const __m512i slot_high = _mm512_loadu_si512(kSlots<kSigned>.slot + 16);
  const VF scale = hn::LoadU(d, kSlots<kSigned>.code_scale);
  const VF offset = hn::LoadU(d, kSlots<kSigned>.code_offset);
  const VF last = hn::LoadU(d, kSlots<kSigned>.last);

  // The code nearest to a fraction from -1 to 1, or of unsigned numbers from 0.
  HWY_INLINE VI code(VF given) const {
    const VF least = hn::Set(d, 0x1p-31f);
    const VF x = kSigned ? larger_magnitude(given, least) : hn::Max(given, least);
    const VI bits = hn::BitCast(di, x);
    const __m512i exponent = hn::ShiftRight<23>(bits).raw;
    const VI step = {_mm512_permutex2var_epi32(slot_low, exponent, slot_high)};
    const __m512i slot = hn::ShiftRight<23>(hn::Add(bits, step)).raw;
    VF place = hn::MulAdd(x, VF{_mm512_permutexvar_ps(slot, scale.raw)},
                          VF{_mm512_permutexvar_ps(slot, offset.raw)});
    place = hn::Min(place, VF{_mm512_permutexvar_ps(slot, last.raw)});
    if constexpr (kSigned) {
      return VI{_mm512_cvttps_epi32(hn::CopySignToAbs(place, given).raw)};
    } else {
      const __mmask16 some = _mm512_cmp_ps_mask(given.raw, _mm512_setzero_ps(), _CMP_GT_OQ);
      return VI{_mm512_maskz_cvttps_epi32(some, place.raw)};
    }
  }
};

#elif HWY_TARGET == HWY_AVX2

template <bool kSigned>
inline constexpr DynamicEstimate kEstimate = make_dynamic_estimate(kMap<kSigned>);

HWY_INLINE VF larger_magnitude(VF a, VF b) { return hn::Max(a, hn::Abs(b)); }

// Entries of a table of eight; the lower three bits of an index count.
HWY_INLINE __m256 look_up(VF table, __m256i index) {
  return _mm256_permutevar8x32_ps(table.raw, index);
}

template <bool kSigned>
struct Decoder {
  const DF d;
  const DI di;
  const VF scale = hn::LoadU(d, kEstimate<kSigned>.scale);
  const VF offset = hn::LoadU(d, kEstimate<kSigned>.offset);

  // The fraction that a code from 0 on stands for.
  HWY_INLINE VF fraction(VI code) const {
    const VF number = hn::ConvertTo(d, code);
    const __m256i exponent = hn::ShiftRight<23>(hn::BitCast(di, number)).raw;
    const VF value =
        hn::MulAdd(number, VF{look_up(scale, exponent)}, VF{look_up(offset, exponent)});
    // The last code is 1, where this gives less; of the one before, number - last is zero.
    const VF above = hn::Sub(number, hn::Set(d, static_cast<float>(kMap<kSigned>.codes - 1)));
    const VF nonzero = hn::BitCast(d, VI{_mm256_cmpgt_epi32(code.raw, _mm256_setzero_si256())});
    return hn::And(hn::Max(value, above), nonzero);
  }
};

template <bool kSigned>
struct Encoder {
  const DF d;
  const DI di;
  const VF threshold = hn::LoadU(d, kEstimate<kSigned>.threshold);
  const VF last = hn::LoadU(d, kEstimate<kSigned>.last);
  const VF scale = hn::LoadU(d, kMap<kSigned>.code_scale);
  const VF offset = hn::LoadU(d, kMap<kSigned>.code_offset);

  // The code nearest to a fraction from -1 to 1, or of unsigned numbers from 0.
  HWY_INLINE VI code(VF given) const {
    const VF x = kSigned ? hn::Abs(given) : given;
    constexpr const DynamicMap& map = kMap<kSigned>;
    const __m256i low = _mm256_set1_epi32(kEstimate<kSigned>.low);
    const __m256i factor = _mm256_set1_epi32(kEstimate<kSigned>.factor);
    const __m256i upper = hn::ShiftRight<16>(hn::BitCast(hn::RebindToUnsigned<DF>(), x)).raw;
    const __m256i below = _mm256_mulhi_epu16(_mm256_subs_epu16(upper, low), factor);
    // Comparisons give -1 where they hold.
    const auto reached = [&](VF bound) __attribute__((always_inline)) {
      return _mm256_castps_si256(_mm256_cmp_ps(x.raw, bound.raw, _CMP_GE_OQ));
    };
    const __m256i decade = _mm256_sub_epi32(below, reached(VF{look_up(threshold, below)}));
    VF place = hn::MulAdd(x, VF{look_up(scale, decade)}, VF{look_up(offset, decade)});
    place = hn::Min(place, VF{look_up(last, decade)});
    // Below the first decade too the first code is nearest but for zero itself.
    if constexpr (!kSigned) place = hn::Max(place, hn::Set(d, 1.0f));
    const __m256i top = reached(hn::Set(d, map.top_threshold));
    const __m256i code = _mm256_sub_epi32(_mm256_cvttps_epi32(place.raw), top);
    const __m256i nonzero = reached(
        hn::Set(d, kSigned ? map.zero_threshold : std::numeric_limits<float>::denorm_min()));
    const __m256i magnitude = _mm256_and_si256(code, nonzero);
    if constexpr (!kSigned) return VI{magnitude};
    // Zero is not told apart from a code's sign: its code is zero.
    return VI{_mm256_sign_epi32(magnitude, _mm256_castps_si256(given.raw))};
  }
};

#endif

#undef DS_QUANTIZE8_VECTORS
#if HWY_TARGET <= HWY_AVX2
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
HWY_INLINE VI codes_of(const Encoder<kSigned>& encoder, VF value, VF inverse) {
  return encoder.code(hn::Mul(value, inverse));
}

// Codes of so many numbers, which are whole vectors.
template <bool kSigned>
HWY_INLINE void encode_vectors(VF inverse, const float* values, int64_t n, uint8_t* codes) {
  const DF d;
  const hn::Rebind<uint8_t, DF> d8;
  const hn::RebindToUnsigned<DF> d32;
  const Encoder<kSigned> encoder{};
  const auto at = [&](int64_t i)
                      DS_SIMD_BODY { return codes_of(encoder, hn::LoadU(d, values + i), inverse); };
  int64_t i = 0;
#if HWY_TARGET <= HWY_AVX3
  // Four vectors to one of bytes, whose groups of four come out lane by lane.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (; i + 64 <= n; i += 64) {
    const __m512i low = _mm512_packs_epi32(at(i).raw, at(i + 16).raw);
    const __m512i high = _mm512_packs_epi32(at(i + 32).raw, at(i + 48).raw);
    const __m512i bytes = kSigned ? _mm512_packs_epi16(low, high) : _mm512_packus_epi16(low, high);
    _mm512_storeu_si512(codes + i, _mm512_permutexvar_epi32(order, bytes));
  }
#elif HWY_TARGET == HWY_AVX2
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (; i + 32 <= n; i += 32) {
    const __m256i low = _mm256_packs_epi32(at(i).raw, at(i + 8).raw);
    const __m256i high = _mm256_packs_epi32(at(i + 16).raw, at(i + 24).raw);
    const __m256i bytes = kSigned ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i),
                        _mm256_permutevar8x32_epi32(bytes, order));
  }
#endif
  for (; i < n; i += simd::lanes()) {
    hn::StoreU(hn::TruncateTo(d8, hn::BitCast(d32, at(i))), d8, codes + i);
  }
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
  i = n / simd::lanes() * simd::lanes();
  encode_vectors<kSigned>(hn::Set(d, inverse), values, i, codes);
#endif
  for (; i < n; ++i) codes[i] = encode_one(kMap<kSigned>, kSigned, values[i] * inverse);
  return largest;
}

}  // namespace ds::kernels::HWY_NAMESPACE::quantize8
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
