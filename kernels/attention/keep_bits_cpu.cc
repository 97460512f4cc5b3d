// The random bits of dropout as masks of 64 elements, for kernels that are not compiled per target.
#include <cstring>

#include "kernels/attention/tiles.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/keep_bits_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void keep_rows(const RandomStream& stream, uint32_t threshold, uint64_t first, uint64_t step,
               int64_t rows, uint64_t* bits) {
  const simd::Philox philox(stream);
  const hn::ScalableTag<uint32_t> d32;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d32));
  HWY_ALIGN uint32_t buffer[kUnit + simd::Philox::kPadding];
  for (int64_t row = 0; row < rows; ++row, first += step) {
    const uint32_t* random = philox.random_bits(first, kUnit, buffer);
    uint64_t kept = 0;
    for (int64_t k = 0; k < kUnit; k += lanes) {
      const auto drop = hn::Lt(hn::LoadU(d32, random + k), hn::Set(d32, threshold));
      uint8_t word[8] = {};
      hn::StoreMaskBits(d32, hn::Not(drop), word);
      uint64_t some = 0;
      std::memcpy(&some, word, sizeof(some));
      kept |= some << k;
    }
    bits[row] = kept;
  }
}

}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
HWY_EXPORT(keep_rows);

void keep_bits(const RandomStream& stream, double probability, uint64_t first, uint64_t step,
               int64_t rows, uint64_t* bits) {
  HWY_DYNAMIC_DISPATCH(keep_rows)(stream, dropout_threshold(probability), first, step, rows, bits);
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
