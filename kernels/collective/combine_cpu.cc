// Combinations and streaming copies with Highway.
#include "kernels/collective/combine.h"

#include <cstring>

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/collective/combine_cpu.cc"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <CombineOp kOp, class D, class V>
HWY_INLINE V apply(D d, V a, V b) {
  if constexpr (kOp == CombineOp::kSum) {
    return hn::Add(a, b);
  } else {
    const V best = kOp == CombineOp::kMin ? hn::Min(a, b) : hn::Max(a, b);
    if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
      const V chosen = hn::IfThenElse(hn::IsNaN(b), b, best);
      return hn::IfThenElse(hn::IsNaN(a), a, chosen);
    }
    (void)d;
    return best;
  }
}

// Loads and stores of storage type T as vectors of its accumulator type.
template <class T>
struct Access {
  using D = hn::ScalableTag<Accumulator<T>>;
  using V = hn::Vec<D>;

  static HWY_INLINE V load(const T* p) {
    if constexpr (std::is_same_v<Accumulator<T>, float>) {
      return simd::load(D(), p);
    } else {
      return hn::LoadU(D(), p);
    }
  }
  static HWY_INLINE void store(V v, T* p) {
    if constexpr (std::is_same_v<Accumulator<T>, float>) {
      simd::store(v, D(), p);
    } else {
      hn::StoreU(v, D(), p);
    }
  }
  // Both vectors, to an aligned place.
  static HWY_INLINE void stream_pair(V a, V b, T* p) {
    const D d;
    if constexpr (sizeof(T) == sizeof(Accumulator<T>)) {
      hn::Stream(a, d, p);
      hn::Stream(b, d, p + hn::Lanes(d));
    } else {
      const hn::Repartition<uint16_t, D> d16;
      auto* bits = reinterpret_cast<uint16_t*>(p);
      hn::Stream(hn::Combine(d16, half(b), half(a)), d16, bits);
    }
  }
  // `count` lanes, one by one.
  static HWY_INLINE V load_n(const T* p, int64_t count) {
    HWY_ALIGN Accumulator<T> lanes[hn::MaxLanes(D())] = {};
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<T, Accumulator<T>>) {
        lanes[i] = p[i];
      } else {
        lanes[i] = to_float(p[i]);
      }
    }
    return hn::Load(D(), lanes);
  }
  static HWY_INLINE void store_n(V v, T* p, int64_t count) {
    HWY_ALIGN Accumulator<T> lanes[hn::MaxLanes(D())];
    hn::Store(v, D(), lanes);
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<T, Accumulator<T>>) {
        p[i] = lanes[i];
      } else {
        p[i] = from_float<T>(lanes[i]);
      }
    }
  }

 private:
  static HWY_INLINE auto half(V v) {
    const hn::Rebind<uint16_t, D> d16;
    if constexpr (std::is_same_v<T, bfloat16>) {
      return hn::TruncateTo(d16, simd::bfloat16_bits(v));
    } else {
#if DS_SIMD_HALF
      return simd::half_bits(v);
#else
      HWY_ALIGN float lanes[hn::MaxLanes(D())];
      HWY_ALIGN uint16_t bits[hn::MaxLanes(D())];
      hn::Store(v, D(), lanes);
      for (size_t i = 0; i < hn::Lanes(D()); ++i) bits[i] = to_float16(lanes[i]).bits;
      return hn::Load(d16, bits);
#endif
    }
  }
};

// The combination of the elements at `i`; load(pointer) says how many.
template <CombineOp kOp, class T, class LoadT, class LoadA>
HWY_INLINE typename Access<T>::V combined(const Combination<T>& task, int64_t i, const LoadT& load,
                                          const LoadA& load_start) {
  const typename Access<T>::D d;
  int next = 0;
  typename Access<T>::V v;
  if (task.start != nullptr) {
    v = load_start(task.start + i);
  } else if (task.input_count > 0) {
    v = load(task.inputs[next++] + i);
  } else {
    v = hn::Zero(d);
  }
  for (; next < task.input_count; ++next) v = apply<kOp>(d, v, load(task.inputs[next] + i));
  if constexpr (std::is_floating_point_v<Accumulator<T>>) {
    if (task.divisor != 1 && task.partial == nullptr) v = hn::Div(v, hn::Set(d, task.divisor));
  }
  return v;
}

template <CombineOp kOp, class T>
void combine_as(const Combination<T>& task, int64_t n) {
  using A = Access<T>;
  using R = Access<Accumulator<T>>;
  const typename A::D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto load = [](const T* p) HWY_ATTR { return A::load(p); };
  const auto load_start = [](const Accumulator<T>* p) HWY_ATTR { return R::load(p); };

  int64_t i = 0;
  const auto some = [&](int64_t count) HWY_ATTR {
    const auto v = combined<kOp>(
        task, i, [&](const T* p) HWY_ATTR { return A::load_n(p, count); },
        [&](const Accumulator<T>* p) HWY_ATTR { return R::load_n(p, count); });
    for (int k = 0; k < task.output_count; ++k) A::store_n(v, task.outputs[k] + i, count);
    if (task.partial != nullptr) R::store_n(v, task.partial + i, count);
    i += count;
  };

  bool stream = task.stream && task.partial == nullptr && task.output_count > 0;
  constexpr uintptr_t kLine = 64;
  if (stream) {
    const auto place = [&](int k) { return reinterpret_cast<uintptr_t>(task.outputs[k]) % kLine; };
    for (int k = 1; k < task.output_count; ++k) stream = stream && place(k) == place(0);
    stream = stream && place(0) % sizeof(T) == 0;
    if (stream) {
      auto head = static_cast<int64_t>((kLine - place(0)) % kLine / sizeof(T));
      while (head > 0 && i < n) {
        const int64_t count = HWY_MIN(HWY_MIN(head, lanes), n - i);
        head -= count;
        some(count);
      }
    }
  }
  // The processor's own prefetching ends with each page. Fetching beyond the end does no harm.
  constexpr int64_t kAhead = 1536 / static_cast<int64_t>(sizeof(T));
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    if (task.stream) {
      for (int k = 0; k < task.input_count; ++k) {
        hwy::Prefetch(task.inputs[k] + i + kAhead);
        if constexpr (sizeof(T) == sizeof(Accumulator<T>)) {
          hwy::Prefetch(task.inputs[k] + i + kAhead + lanes);
        }
      }
    }
    const auto a = combined<kOp>(task, i, load, load_start);
    const auto b = combined<kOp>(task, i + lanes, load, load_start);
    for (int k = 0; k < task.output_count; ++k) {
      T* const out = task.outputs[k] + i;
      if (stream) {
        A::stream_pair(a, b, out);
      } else {
        A::store(a, out);
        A::store(b, out + lanes);
      }
    }
    if (task.partial != nullptr) {
      R::store(a, task.partial + i);
      R::store(b, task.partial + i + lanes);
    }
  }
  if (stream) hwy::FlushStream();
  while (i < n) some(HWY_MIN(lanes, n - i));  // NOLINT(bugprone-infinite-loop): some() moves i
}

template <class T>
void combine_any(const Combination<T>& task, int64_t n) {
  switch (task.op) {
    case CombineOp::kSum:
      return combine_as<CombineOp::kSum>(task, n);
    case CombineOp::kMin:
      return combine_as<CombineOp::kMin>(task, n);
    case CombineOp::kMax:
      return combine_as<CombineOp::kMax>(task, n);
  }
}

void combine_f32(const Combination<float>& t, int64_t n) { combine_any(t, n); }
void combine_bf16(const Combination<bfloat16>& t, int64_t n) { combine_any(t, n); }
void combine_f16(const Combination<float16>& t, int64_t n) { combine_any(t, n); }
void combine_f64(const Combination<double>& t, int64_t n) { combine_any(t, n); }
void combine_i8(const Combination<int8_t>& t, int64_t n) { combine_any(t, n); }
void combine_i16(const Combination<int16_t>& t, int64_t n) { combine_any(t, n); }
void combine_i32(const Combination<int32_t>& t, int64_t n) { combine_any(t, n); }
void combine_i64(const Combination<int64_t>& t, int64_t n) { combine_any(t, n); }
void combine_u8(const Combination<uint8_t>& t, int64_t n) { combine_any(t, n); }
void combine_u16(const Combination<uint16_t>& t, int64_t n) { combine_any(t, n); }
void combine_u32(const Combination<uint32_t>& t, int64_t n) { combine_any(t, n); }
void combine_u64(const Combination<uint64_t>& t, int64_t n) { combine_any(t, n); }

void copy_past_cache(void* to, const void* from, int64_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto* target = static_cast<uint8_t*>(to);
  const auto* source = static_cast<const uint8_t*>(from);
  constexpr int64_t kLine = 64;
  const auto head = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) % kLine);
  if (bytes <= head + 4 * lanes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  if (head > 0) std::memcpy(to, from, static_cast<size_t>(head));
  int64_t i = head;
  for (; i + 4 * lanes <= bytes; i += 4 * lanes) {
    const auto a = hn::LoadU(d, source + i), b = hn::LoadU(d, source + i + lanes);
    const auto c = hn::LoadU(d, source + i + 2 * lanes), e = hn::LoadU(d, source + i + 3 * lanes);
    hn::Stream(a, d, target + i);
    hn::Stream(b, d, target + i + lanes);
    hn::Stream(c, d, target + i + 2 * lanes);
    hn::Stream(e, d, target + i + 3 * lanes);
  }
  hwy::FlushStream();
  if (i < bytes) std::memcpy(target + i, source + i, static_cast<size_t>(bytes - i));
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {

HWY_EXPORT(combine_f32);
HWY_EXPORT(combine_bf16);
HWY_EXPORT(combine_f16);
HWY_EXPORT(combine_f64);
HWY_EXPORT(combine_i8);
HWY_EXPORT(combine_i16);
HWY_EXPORT(combine_i32);
HWY_EXPORT(combine_i64);
HWY_EXPORT(combine_u8);
HWY_EXPORT(combine_u16);
HWY_EXPORT(combine_u32);
HWY_EXPORT(combine_u64);
HWY_EXPORT(copy_past_cache);

void combine(const Combination<float>& t, int64_t n) { HWY_DYNAMIC_DISPATCH(combine_f32)(t, n); }
void combine(const Combination<bfloat16>& t, int64_t n) {
  HWY_DYNAMIC_DISPATCH(combine_bf16)(t, n);
}
void combine(const Combination<float16>& t, int64_t n) { HWY_DYNAMIC_DISPATCH(combine_f16)(t, n); }
void combine(const Combination<double>& t, int64_t n) { HWY_DYNAMIC_DISPATCH(combine_f64)(t, n); }
void combine(const Combination<int8_t>& t, int64_t n) { HWY_DYNAMIC_DISPATCH(combine_i8)(t, n); }
void combine(const Combination<int16_t>& t, int64_t n) { HWY_DYNAMIC_DISPATCH(combine_i16)(t, n); }
void combine(const Combination<int32_t>& t, int64_t n) { HWY_DYNAMIC_DISPATCH(combine_i32)(t, n); }
void combine(const Combination<int64_t>& t, int64_t n) { HWY_DYNAMIC_DISPATCH(combine_i64)(t, n); }
void combine(const Combination<uint8_t>& t, int64_t n) { HWY_DYNAMIC_DISPATCH(combine_u8)(t, n); }
void combine(const Combination<uint16_t>& t, int64_t n) { HWY_DYNAMIC_DISPATCH(combine_u16)(t, n); }
void combine(const Combination<uint32_t>& t, int64_t n) { HWY_DYNAMIC_DISPATCH(combine_u32)(t, n); }
void combine(const Combination<uint64_t>& t, int64_t n) { HWY_DYNAMIC_DISPATCH(combine_u64)(t, n); }

void stream_copy(void* to, const void* from, int64_t bytes) {
  HWY_DYNAMIC_DISPATCH(copy_past_cache)(to, from, bytes);
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
