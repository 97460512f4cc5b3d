// Lanes of 8-bit codes. Included once per SIMD target.
#if defined(DS_KERNELS_ATTENTION_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_ATTENTION_CODES_INL_H_
#undef DS_KERNELS_ATTENTION_CODES_INL_H_
#else
#define DS_KERNELS_ATTENTION_CODES_INL_H_
#endif

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE::simd {

HWY_INLINE VF load(DF d, const int8_t* p) {
  const hn::RebindToSigned<DF> d32;
  const hn::Rebind<int8_t, DF> d8;
  return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, p)));
}
// The first n lanes; nothing beyond is read.
HWY_INLINE VF load_n(DF d, const int8_t* p, int64_t n) {
  HWY_ALIGN int8_t buffer[hn::MaxLanes(DF())] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load(d, buffer);
}

// Whole numbers of -127 to 127 in each lane.
HWY_INLINE void store_codes(VF v, DF, int8_t* p) {
  const hn::Rebind<int8_t, DF> d8;
  hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(v)), d8, p);
}
HWY_INLINE void store_codes_n(VF v, DF d, int8_t* p, int64_t n) {
  HWY_ALIGN int8_t buffer[hn::MaxLanes(DF())];
  store_codes(v, d, buffer);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

}  // namespace ds::kernels::HWY_NAMESPACE::simd
HWY_AFTER_NAMESPACE();
#endif
