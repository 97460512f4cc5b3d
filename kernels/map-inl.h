// Loops over arrays of one element type, two vectors a step: simd::map stores what a body returns,
// simd::visit only calls it. Included once per SIMD target, after simd-inl.h or instead of it.
//
//   simd::map<T>(n, [&](auto at) DS_SIMD_BODY { return hn::Mul(at.load(x), factor); }, y);
//
// The body sees one vector at a time and must not care which elements share one: a pair of bf16
// vectors holds the even and the odd elements, which costs two operations to take apart and two to
// join, where elements in turn cost eight.
//
// Where the CPU converts to bf16 by itself, map stores what its instruction makes: as any store
// here, but results below 2^-126, which it flushes to zero. map_exact keeps those.
#if defined(DS_KERNELS_MAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DS_KERNELS_MAP_INL_H_
#undef DS_KERNELS_MAP_INL_H_
#else
#define DS_KERNELS_MAP_INL_H_
#endif

#include <type_traits>
#include <utility>

#include "kernels/cpu.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE::simd {

template <class T>
inline constexpr bool kSplit = std::is_same_v<T, bfloat16>;

// ---- bf16 pairs ----

using DHalves = hn::Repartition<uint16_t, DF>;
using DWords = hn::RebindToUnsigned<DF>;

DS_SIMD_CALL hn::Vec<DWords> bfloat16_pairs(const bfloat16* p) {
  return hn::BitCast(DWords(), hn::LoadU(DHalves(), reinterpret_cast<const uint16_t*>(p)));
}

DS_SIMD_CALL bool any_nan(DF d, VF a, VF b) {
#if HWY_TARGET <= HWY_AVX3
  (void)d;
  return _mm512_cmp_ps_mask(a.raw, b.raw, _CMP_UNORD_Q) != 0;
#else
  return !hn::AllFalse(d, hn::Or(hn::IsNaN(a), hn::IsNaN(b)));
#endif
}

// What is not NaN, rounded to bf16 in the upper half of each lane; the lower half is arbitrary.
DS_SIMD_CALL hn::Vec<DWords> bfloat16_above(VF v) {
  const DWords d32;
  const auto bits = hn::BitCast(d32, v);
  const auto up = hn::Add(bits, hn::Set(d32, 0x7FFFu));
#if HWY_TARGET <= HWY_AVX3  // a test and an addition under its mask; shifts have one port
  const __mmask16 odd = _mm512_test_epi32_mask(bits.raw, _mm512_set1_epi32(0x10000));
  return hn::Vec<DWords>{_mm512_mask_add_epi32(up.raw, odd, up.raw, _mm512_set1_epi32(1))};
#else
  return hn::Add(up, hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u)));
#endif
}

DS_SIMD_CALL void store_split(VF even, VF odd, DF d, bfloat16* p) {
  const DWords d32;
  hn::Vec<DWords> low, high;
  if (HWY_UNLIKELY(any_nan(d, even, odd))) {
    low = bfloat16_bits(even);
    high = hn::ShiftLeft<16>(bfloat16_bits(odd));
  } else {
    low = hn::ShiftRight<16>(bfloat16_above(even));
    high = hn::And(bfloat16_above(odd), hn::Set(d32, 0xFFFF0000u));
  }
  hn::StoreU(hn::BitCast(DHalves(), hn::Or(low, high)), DHalves(), reinterpret_cast<uint16_t*>(p));
}

// Two vectors of elements in turn.
DS_SIMD_CALL void store_pair(VF first, VF second, DF d, bfloat16* p) {
  hn::Vec<DWords> a, b;
  if (HWY_UNLIKELY(any_nan(d, first, second))) {
    a = hn::ShiftLeft<16>(bfloat16_bits(first));
    b = hn::ShiftLeft<16>(bfloat16_bits(second));
  } else {
    a = bfloat16_above(first);
    b = bfloat16_above(second);
  }
  const DHalves d16;
  hn::StoreU(hn::ConcatOdd(d16, hn::BitCast(d16, b), hn::BitCast(d16, a)), d16,
             reinterpret_cast<uint16_t*>(p));
}
template <class T>
DS_SIMD_CALL void store_pair(VF first, VF second, DF d, T* p) {
  store(first, d, p);
  store(second, d, p + lanes());
}

// Who rounds to bf16: the CPU's instruction, or the functions above.
enum class Rounding { kInstruction, kExact };

#if HWY_TARGET <= HWY_AVX3
// Rounds `low` into the lower half of the result and `high` into the upper. In assembler, because
// this target does not promise the instruction; kHasBf16Conversion does.
HWY_INLINE __m512i bfloat16_halves(VF low, VF high) {
  __m512i halves;
  asm("vcvtne2ps2bf16 %[low], %[high], %[halves]"
      : [halves] "=v"(halves)
      : [low] "v"(low.raw), [high] "v"(high.raw));
  return halves;
}
#endif

template <bool kSplitPair, Rounding kRounding, class T>
HWY_INLINE void store_both(VF first, VF second, DF d, T* p) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (kRounding == Rounding::kInstruction && std::is_same_v<T, bfloat16>) {
    __m512i bits = bfloat16_halves(first, second);
    if constexpr (kSplitPair) {
      alignas(64) static constexpr uint16_t kInTurn[32] = {
          0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
      bits = _mm512_permutexvar_epi16(_mm512_load_si512(kInTurn), bits);
    }
    _mm512_storeu_si512(p, bits);
    return;
  }
#endif
  if constexpr (kSplitPair) {
    store_split(first, second, d, p);
  } else {
    store_pair(first, second, d, p);
  }
}

// The value that a store to T and a load would give.
template <class T>
DS_SIMD_CALL VF stored_as(DF d, VF v) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (HWY_LIKELY(!any_nan(d, v, v))) {
      return hn::BitCast(d, hn::And(bfloat16_above(v), hn::Set(DWords(), 0xFFFF0000u)));
    }
  }
  return rounded_to<T>(d, v);
}

// ---- places ----

// The vector `kIndex` (0 or 1) of the pair whose elements begin at i. Scratch in fp32 keeps the
// order of lanes: `slot` is where this vector lies in it.
template <int kIndex, bool kSplitPair>
struct Whole {
  static constexpr int index = kIndex;
  int64_t i, slot;

  template <class T>
  HWY_INLINE VF load(const T* p) const {
    const DF d;
    if constexpr (!kSplitPair) {
      if constexpr (sizeof(T) == 4 || kIndex == 0) fetch_ahead(p + slot);
      return simd::load(d, p + slot);
    } else {
      static_assert(std::is_same_v<T, bfloat16>, "a split pair reads bf16 alone");
      const DWords d32;
      const auto pairs = bfloat16_pairs(p + i);
      if constexpr (kIndex == 0) {
        fetch_ahead(p + i);
        return hn::BitCast(d, hn::ShiftLeft<16>(pairs));
      } else {
        return hn::BitCast(d, hn::And(pairs, hn::Set(d32, 0xFFFF0000u)));
      }
    }
  }
  HWY_INLINE VF load_scratch(const float* p) const { return hn::LoadU(DF(), p + slot); }
  HWY_INLINE void store_scratch(VF v, float* p) const { hn::StoreU(v, DF(), p + slot); }
  HWY_INLINE VF keep(VF v) const { return v; }
  HWY_INLINE VF keep_or(VF v, VF) const { return v; }
};

// What is left behind the last pair: up to a vector of elements in turn.
struct Part {
  static constexpr int index = 0;
  int64_t slot, count;

  template <class T>
  HWY_INLINE VF load(const T* p) const {
    return load_n(DF(), p + slot, count);
  }
  HWY_INLINE VF load_scratch(const float* p) const { return load_n(DF(), p + slot, count); }
  HWY_INLINE void store_scratch(VF v, float* p) const { store_n(v, DF(), p + slot, count); }
  // Zero, or `other`, in lanes that stand for no element.
  HWY_INLINE VF keep(VF v) const { return keep_n(DF(), v, count); }
  HWY_INLINE VF keep_or(VF v, VF other) const {
    return hn::IfThenElse(hn::FirstN(DF(), static_cast<size_t>(count)), v, other);
  }
};

// Elements that form pairs, from the first on.
HWY_INLINE int64_t paired(int64_t n) { return n - n % (2 * lanes()); }

// Brings scratch that split pairs have filled into the order of the elements.
HWY_INLINE void unsplit(int64_t n, float* scratch) {
  const DF d;
  for (int64_t i = 0; i < paired(n); i += 2 * lanes()) {
    const VF even = hn::LoadU(d, scratch + i), odd = hn::LoadU(d, scratch + i + lanes());
    hn::StoreInterleaved2(even, odd, d, scratch + i);
  }
}

// ---- loops ----

// What a body returns that has several results.
template <int kCount>
struct Results {
  VF v[kCount];
};
template <int k>
HWY_INLINE VF result(VF v) {
  return v;
}
template <int k, int kCount>
HWY_INLINE VF result(const Results<kCount>& r) {
  return r.v[k];
}

template <bool kSplitPair, Rounding kRounding, class Body, int... k, class... Out>
HWY_INLINE void map_places(int64_t n, const Body& body, std::integer_sequence<int, k...>,
                           Out*... out) {
  const DF d;
  const int64_t step = lanes();
  int64_t i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    const auto first = body(Whole<0, kSplitPair>{i, i});
    const auto second = body(Whole<1, kSplitPair>{i, i + step});
    (store_both<kSplitPair, kRounding>(result<k>(first), result<k>(second), d, out + i), ...);
  }
  for (; i < n; i += step) {
    const int64_t count = HWY_MIN(step, n - i);
    const auto last = body(Part{i, count});
    (store_n(result<k>(last), d, out + i, count), ...);
  }
}

// out = body(place), one result for each of the arrays `out`. T is the type of all arrays, or float
// where types differ. An array may be read and written.
template <class T, class Body, class... Out>
HWY_INLINE void map_exact(int64_t n, const Body& body, Out*... out) {
  constexpr auto kResults = std::make_integer_sequence<int, sizeof...(Out)>();
  map_places<kSplit<T>, Rounding::kExact>(n, body, kResults, out...);
}
template <class T, class Body, class... Out>
HWY_INLINE void map(int64_t n, const Body& body, Out*... out) {
  constexpr auto kResults = std::make_integer_sequence<int, sizeof...(Out)>();
#if HWY_TARGET <= HWY_AVX3
  if constexpr ((std::is_same_v<Out, bfloat16> || ...)) {
    if (HWY_LIKELY(kHasBf16Conversion)) {
      map_places<kSplit<T>, Rounding::kInstruction>(n, body, kResults, out...);
      return;
    }
  }
#endif
  map_places<kSplit<T>, Rounding::kExact>(n, body, kResults, out...);
}

// Calls body(place) for all elements.
template <class T, class Body>
HWY_INLINE void visit(int64_t n, const Body& body) {
  const int64_t step = lanes();
  int64_t i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    body(Whole<0, kSplit<T>>{i, i});
    body(Whole<1, kSplit<T>>{i, i + step});
  }
  for (; i < n; i += step) body(Part{i, HWY_MIN(step, n - i)});
}

// Sums of lanes that a body adds to, apart for the two vectors of a pair.
struct Sums {
  VF s[2];
  HWY_INLINE Sums() : s{hn::Zero(DF()), hn::Zero(DF())} {}
  template <class At>
  HWY_INLINE void add(At, VF v) {
    s[At::index] = hn::Add(s[At::index], v);
  }
  template <class At>
  HWY_INLINE void add_product(At, VF a, VF b) {
    s[At::index] = hn::MulAdd(a, b, s[At::index]);
  }
  HWY_INLINE float total() const { return sum_of_lanes(DF(), hn::Add(s[0], s[1])); }
};

}  // namespace ds::kernels::HWY_NAMESPACE::simd
HWY_AFTER_NAMESPACE();
#endif  // per-target guard
