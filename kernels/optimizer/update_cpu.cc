// Optimizer updates with Highway. Where the types allow it, one loop reads and writes memory
// directly, or Adam's with 8-bit states two, block by block of those; else the stages (widen, join,
// decode; rule; split, narrow, encode) work on blocks of 1024 elements in the first-level cache.
#include "kernels/optimizer/update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/thread_pool.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optimizer/update_cpu.cc"
#include <hwy/foreach_target.h>

#include "kernels/optimizer/quantize8-inl.h"
#include "kernels/optimizer/rules_simd-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ds::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

constexpr int64_t kBlock = 1024;
static_assert(kBlock % kStateBlock == 0 && kUpdateChunk % kBlock == 0);

// Updates wait for memory, and a rule is so long that few vectors are under way at once. From 256
// to 1,024 elements ahead were alike.
template <class T>
HWY_INLINE void fetch_ahead(const T* p) {
  constexpr uintptr_t kElements = 512;
  simd::fetch_ahead<kElements * sizeof(T)>(p);
}

// What one call passes to its chunks.
struct Call {
  const UpdateConstants* constants;
  const UpdatePiece* pieces;
  const int64_t* first;
  const UpdateArrays* arrays;
};

// ---- masters in memory: fp32, fp32 with a bf16 copy, bf16, split ----

// fp32, or a lower type that is rounded to.
template <class T>
struct StoredMaster {
  T* p;
  HWY_INLINE void fetch_from(int64_t i) const { fetch_ahead(p + i); }
  template <class Count>
  HWY_INLINE VF get(DF d, int64_t i, Count count) const {
    return simd::load_n(d, p + i, count);
  }
  template <class Count>
  HWY_INLINE void set(DF d, int64_t i, Count count, VF v) const {
    simd::store_n(v, d, p + i, count);
  }
};

struct CopiedMaster {
  float* p;
  bfloat16* model;
  HWY_INLINE void fetch_from(int64_t i) const {
    fetch_ahead(p + i);
    fetch_ahead(model + i);
  }
  template <class Count>
  HWY_INLINE VF get(DF d, int64_t i, Count count) const {
    return simd::load_n(d, p + i, count);
  }
  template <class Count>
  HWY_INLINE void set(DF d, int64_t i, Count count, VF v) const {
    simd::store_n(v, d, p + i, count);
    simd::store_n(v, d, model + i, count);
  }
};

using D32 = hn::RebindToUnsigned<DF>;
using D16 = hn::Rebind<uint16_t, DF>;

struct SplitMaster {
  bfloat16* weight = nullptr;
  uint16_t* low = nullptr;

  HWY_INLINE void fetch_from(int64_t i) const {
    fetch_ahead(weight + i);
    fetch_ahead(low + i);
  }
  HWY_INLINE VF get(DF d, int64_t i, simd::AllLanes) const {
    const hn::RebindToSigned<DF> di;
    const hn::Rebind<int16_t, DF> d16;
    const auto rest = hn::PromoteTo(di, hn::LoadU(d16, reinterpret_cast<const int16_t*>(low + i)));
    const auto high = hn::BitCast(di, simd::load(d, weight + i));
    return hn::BitCast(d, hn::Add(high, rest));
  }
  HWY_INLINE void set(DF, int64_t i, simd::AllLanes, VF v) const {
    const D32 d32;
    const D16 d16;
    const auto bits = hn::BitCast(d32, v);
    const auto high = hn::ShiftRight<16>(hn::Add(bits, hn::Set(d32, 0x8000u)));
    hn::StoreU(hn::TruncateTo(d16, high), d16, reinterpret_cast<uint16_t*>(weight + i));
    hn::StoreU(hn::TruncateTo(d16, bits), d16, low + i);
  }
  // A tail goes through whole vectors on the stack.
  HWY_INLINE VF get(DF d, int64_t i, int64_t count) const {
    HWY_ALIGN bfloat16 weights[hn::MaxLanes(DF())] = {};
    HWY_ALIGN uint16_t lows[hn::MaxLanes(DF())] = {};
    std::memcpy(weights, weight + i, static_cast<size_t>(count) * sizeof(bfloat16));
    std::memcpy(lows, low + i, static_cast<size_t>(count) * sizeof(uint16_t));
    return SplitMaster{weights, lows}.get(d, 0, simd::AllLanes());
  }
  HWY_INLINE void set(DF d, int64_t i, int64_t count, VF v) const {
    HWY_ALIGN bfloat16 weights[hn::MaxLanes(DF())];
    HWY_ALIGN uint16_t lows[hn::MaxLanes(DF())];
    SplitMaster{weights, lows}.set(d, 0, simd::AllLanes(), v);
    std::memcpy(weight + i, weights, static_cast<size_t>(count) * sizeof(bfloat16));
    std::memcpy(low + i, lows, static_cast<size_t>(count) * sizeof(uint16_t));
  }
};

// ---- the loop ----

template <class State>
using States = std::array<State*, kMostStates>;

template <class Rule, class Grad, class Master, class State>
HWY_INLINE void apply(const UpdateConstants& constants, int64_t n, const Grad* grad,
                      const Master& master, const States<State>& states) {
  const DF d;
  const rules::Lanes a(constants);
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    master.fetch_from(i);
    fetch_ahead(grad + i);
    for (int which = 0; which < Rule::kStates; ++which) fetch_ahead(states[which] + i);
    VF p = master.get(d, i, count), s = hn::Zero(d), t = s, u = s;
    if constexpr (Rule::kStates >= 1) s = simd::load_n(d, states[0] + i, count);
    if constexpr (Rule::kStates >= 2) t = simd::load_n(d, states[1] + i, count);
    if constexpr (Rule::kStates >= 3) u = simd::load_n(d, states[2] + i, count);
    const VF g = simd::load_n(d, grad + i, count);
    if constexpr (Rule::kStates >= 3) {
      Rule::apply(a, g, p, s, t, u);
    } else {
      Rule::apply(a, g, p, s, t);
    }
    if constexpr (Rule::kWritesMaster) master.set(d, i, count, p);
    if constexpr (Rule::kStates >= 1 && Rule::kWritesStates) {
      simd::store_n(s, d, states[0] + i, count);
    }
    if constexpr (Rule::kStates >= 2 && Rule::kWritesStates) {
      simd::store_n(t, d, states[1] + i, count);
    }
    if constexpr (Rule::kStates >= 3 && Rule::kWritesStates) {
      simd::store_n(u, d, states[2] + i, count);
    }
  });
}

// ---- stages ----

template <class T>
void widen(const T* from, int64_t n, float* to) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    fetch_ahead(from + i);
    simd::store_n(simd::load_n(d, from + i, count), d, to + i, count);
  });
}
template <class T>
void narrow(const float* from, int64_t n, T* to) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    simd::store_n(simd::load_n(d, from + i, count), d, to + i, count);
  });
}
void join(const SplitMaster& from, int64_t n, float* to) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count) DS_SIMD_BODY {
    from.fetch_from(i);
    simd::store_n(from.get(d, i, count), d, to + i, count);
  });
}
void split(const float* from, int64_t n, const SplitMaster& to) {
  const DF d;
  simd::for_vectors(n, [&](int64_t i, auto count)
                           DS_SIMD_BODY { to.set(d, i, count, simd::load_n(d, from + i, count)); });
}

// [begin, begin + n) of a state; begin is a multiple of kStateBlock and n ends at one or at the end
// of the array. fp32 is left where it is.
float* fetch_state(const StateArray& state, int64_t begin, int64_t n, float* buffer) {
  switch (state.kind) {
    case StateKind::kNone:
      return nullptr;
    case StateKind::kFp32:
      return static_cast<float*>(state.data) + begin;
    case StateKind::kBf16:
      widen(static_cast<const bfloat16*>(state.data) + begin, n, buffer);
      return buffer;
    case StateKind::kInt8:
    case StateKind::kUInt8:
      for (int64_t i = 0; i < n; i += kStateBlock) {
        const int64_t count = std::min(kStateBlock, n - i);
        const auto* codes = static_cast<const uint8_t*>(state.data) + begin + i;
        const float scale = state.scales[(begin + i) / kStateBlock];
        if (state.kind == StateKind::kInt8) {
          quantize8::decode<true>(codes, count, scale, buffer + i);
        } else {
          quantize8::decode<false>(codes, count, scale, buffer + i);
        }
      }
      return buffer;
  }
  return nullptr;
}

void keep_state(const StateArray& state, int64_t begin, int64_t n, const float* buffer) {
  if (state.kind == StateKind::kBf16) {
    narrow(buffer, n, static_cast<bfloat16*>(state.data) + begin);
  } else if (state.kind == StateKind::kInt8 || state.kind == StateKind::kUInt8) {
    for (int64_t i = 0; i < n; i += kStateBlock) {
      const int64_t count = std::min(kStateBlock, n - i);
      auto* codes = static_cast<uint8_t*>(state.data) + begin + i;
      float& scale = state.scales[(begin + i) / kStateBlock];
      if (state.kind == StateKind::kInt8) {
        scale = quantize8::encode<true>(buffer + i, count, codes);
      } else {
        scale = quantize8::encode<false>(buffer + i, count, codes);
      }
    }
  }
}

// Adds the squares of the parameter and of LAMB's update to norms[0] and norms[1].
void add_norms(const UpdateConstants& constants, int64_t n, const float* p, const float* m,
               const float* v, ExactSum* norms) {
  const DF d;
  const simd::DD dd;
  const rules::Lanes a(constants);
  const auto add = [&](simd::VD& to, VF x) DS_SIMD_BODY {
    const simd::VD low = simd::lower_doubles(x), high = simd::upper_doubles(x);
    to = hn::MulAdd(low, low, to);
    to = hn::MulAdd(high, high, to);
  };
  for (int64_t at = 0; at < n; at += kNormBlock) {
    simd::VD weights = hn::Zero(dd), updates = weights;
    simd::for_vectors(std::min(kNormBlock, n - at), [&](int64_t i, auto count) DS_SIMD_BODY {
      const VF x = simd::load_n(d, p + at + i, count);
      const VF u = rules::lamb_direction(a, x, simd::load_n(d, m + at + i, count),
                                         simd::load_n(d, v + at + i, count));
      add(weights, x);
      add(updates, simd::keep_n(d, u, count));
    });
    norms[0].add(simd::sum_of_lanes(dd, weights));
    norms[1].add(simd::sum_of_lanes(dd, updates));
  }
}

struct Buffers {
  HWY_ALIGN float grad[kBlock];
  HWY_ALIGN float master[kBlock];
  HWY_ALIGN float state[kMostStates][kBlock];
};

// Masters [begin, begin + n) as fp32, where they are not.
void widen_masters(const UpdateArrays& a, int64_t begin, int64_t n, float* to) {
  if (a.low != nullptr) {
    join({a.weight + begin, a.low + begin}, n, to);
  } else if (a.model_kind == NumberKind::kBf16) {
    widen(static_cast<const bfloat16*>(a.model) + begin, n, to);
  } else {
    widen(static_cast<const float16*>(a.model) + begin, n, to);
  }
}

// One rule over [begin, begin + n) with states in fp32.
template <class Rule>
void staged(const UpdateArrays& a, const UpdateConstants& constants, int64_t begin, int64_t n,
            const States<float>& states, Buffers& buffers) {
  const float* grad = buffers.grad;
  if (a.grad_kind == NumberKind::kFp32) {
    grad = static_cast<const float*>(a.grad) + begin;
  } else if (a.grad_kind == NumberKind::kBf16) {
    widen(static_cast<const bfloat16*>(a.grad) + begin, n, buffers.grad);
  } else {
    widen(static_cast<const float16*>(a.grad) + begin, n, buffers.grad);
  }
  float* p = a.master == nullptr ? buffers.master : a.master + begin;
  if (a.master == nullptr && Rule::kWritesMaster) widen_masters(a, begin, n, p);
  apply<Rule>(constants, n, grad, StoredMaster<float>{p}, states);
  if (!Rule::kWritesMaster) return;
  if (a.low != nullptr) split(p, n, {a.weight + begin, a.low + begin});
  if (a.model_kind == NumberKind::kBf16) {
    narrow(p, n, static_cast<bfloat16*>(a.model) + begin);
  } else if (a.model_kind == NumberKind::kFp16) {
    narrow(p, n, static_cast<float16*>(a.model) + begin);
  }
}

// Calls whole(piece, at, n) for blocks that lie in one piece, if it wants them (it returns whether
// it has done the block), and the stages for the others.
template <class Rule, class Whole>
void staged_chunk(const Call& call, int64_t begin, int64_t end, const Whole& whole) {
  const UpdateArrays& a = *call.arrays;
  const int64_t chunk = begin / kUpdateChunk;
  int64_t k = call.first[chunk];
  const int64_t pieces_end = call.first[chunk + 1];
  Buffers buffers;
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t stop = std::min(at + kBlock, end);
    while (k < pieces_end && call.pieces[k].end <= at) ++k;
    if (k == pieces_end) break;
    const UpdatePiece& piece = call.pieces[k];
    if (piece.begin >= stop) continue;
    if (piece.begin <= at && piece.end >= stop &&
        whole(call.constants[piece.hyper], at, stop - at)) {
      continue;
    }
    const auto fetch = [&](int which) {
      return which < Rule::kStates
                 ? fetch_state(a.state[which], at, stop - at, buffers.state[which])
                 : nullptr;
    };
    const States<float> states = {fetch(0), fetch(1), fetch(2)};
    const auto each_piece = [&](const auto& body) {
      for (int64_t j = k; j < pieces_end && call.pieces[j].begin < stop; ++j) {
        const int64_t low = std::max(call.pieces[j].begin, at);
        const int64_t high = std::min(call.pieces[j].end, stop);
        body(j, call.constants[call.pieces[j].hyper], low, high - low);
      }
    };
    const auto states_at = [&](int64_t i) {
      States<float> out = states;
      for (float*& state : out) state = state != nullptr ? state + (i - at) : nullptr;
      return out;
    };
    each_piece([&](int64_t, const UpdateConstants& constants, int64_t i, int64_t n) {
      staged<Rule>(a, constants, i, n, states_at(i), buffers);
    });
    if (Rule::kWritesStates) {
      for (int which = 0; which < Rule::kStates; ++which) {
        keep_state(a.state[which], at, stop - at, buffers.state[which]);
      }
    }
    if constexpr (std::is_same_v<Rule, rules::LambMoments>) {
      // The norms are of the update that LambApply will make, from the states as they are kept.
      fetch(0);
      fetch(1);
      each_piece([&](int64_t j, const UpdateConstants& constants, int64_t i, int64_t n) {
        const float* p = a.master != nullptr ? a.master + i : buffers.master;
        if (a.master == nullptr) widen_masters(a, i, n, buffers.master);
        const States<float> kept = states_at(i);
        add_norms(constants, n, p, kept[0], kept[1], a.norms + 2 * j);
      });
    }
  }
}

// ---- Adam with 8-bit states ----

#if DS_QUANTIZE8_VECTORS
// Twice over each group of blocks of codes: what the states become is in relation to a block's
// largest magnitudes, which are known only when all of it is updated. Until they are coded the
// numbers stay in the first-level cache. A group is several blocks, so that what follows a block's
// largest magnitude waits for none.
constexpr int64_t kCodedGroup = kBlock / kStateBlock;

// Moments of one block before they are coded, and what their codes are fractions of.
struct CodedMoments {
  HWY_ALIGN float means[kStateBlock];
  HWY_ALIGN float squares[kStateBlock];
  float mean_scale, square_scale;
};

// All of an element's update is a chain of some 90 cycles, which processors see too few elements
// ahead to hide: so the loop is cut, with AVX-512 once more where only the step is known.
constexpr bool kStepsApart = HWY_TARGET <= HWY_AVX3;

// Moves the weights of the block at `at` by its moments.
template <class Master>
HWY_INLINE void move_weights(const rules::Lanes& a, int64_t at, const Master& master,
                             const CodedMoments& moments) {
  const DF d;
  HWY_ALIGN float steps[kStateBlock];
  const auto step = [&](int64_t i) DS_SIMD_BODY {
    return rules::Adam::step(a, hn::Load(d, moments.means + i), hn::Load(d, moments.squares + i));
  };
  if constexpr (kStepsApart) {
    for (int64_t i = 0; i < kStateBlock; i += simd::lanes()) hn::Store(step(i), d, steps + i);
  }
  for (int64_t i = 0; i < kStateBlock; i += simd::lanes()) {
    const VF p = master.get(d, at + i, simd::AllLanes());
    const VF by = kStepsApart ? hn::Load(d, steps + i) : step(i);
    master.set(d, at + i, simd::AllLanes(), rules::moved(a, p, by));
  }
}

// The first pass over one block, which begins at element `at`.
template <class Grad, class Master>
HWY_INLINE void coded_adam_block(const rules::Lanes& a, int64_t at, const Grad* grad,
                                 const Master& master, const StateArray* states,
                                 CodedMoments& moments) {
  const DF d;
  const quantize8::Decoder<true> mean_decoder{};
  const quantize8::Decoder<false> square_decoder{};
  const auto* mean_codes = static_cast<const uint8_t*>(states[0].data) + at;
  const auto* square_codes = static_cast<const uint8_t*>(states[1].data) + at;
  const VF mean_scale = hn::Set(d, states[0].scales[at / kStateBlock]);
  const VF square_scale = hn::Set(d, states[1].scales[at / kStateBlock]);
  VF most_mean = hn::Zero(d), most_square = most_mean;
  for (int64_t i = 0; i < kStateBlock; i += simd::lanes()) {
    master.fetch_from(at + i);
    fetch_ahead(grad + at + i);
    const VF p = master.get(d, at + i, simd::AllLanes());
    VF m = quantize8::decode_vector(mean_decoder, mean_codes + i, mean_scale);
    VF v = quantize8::decode_vector(square_decoder, square_codes + i, square_scale);
    rules::Adam::update_moments(a, simd::load(d, grad + at + i), p, m, v);
    hn::Store(m, d, moments.means + i);
    hn::Store(v, d, moments.squares + i);
    most_mean = quantize8::larger_magnitude(most_mean, m);
    most_square = hn::Max(most_square, v);
  }
  move_weights(a, at, master, moments);
  moments.mean_scale = quantize8::scale_of(simd::max_of_lanes(d, most_mean));
  moments.square_scale = quantize8::scale_of(simd::max_of_lanes(d, most_square));
}

// The second: numbers to codes.
template <bool kSigned>
HWY_INLINE void code_block(const StateArray& state, int64_t at, float scale, const float* values) {
  state.scales[at / kStateBlock] = scale;
  quantize8::encode_vectors<kSigned>(hn::Set(DF(), quantize8::inverse_of(scale)), values,
                                     kStateBlock, static_cast<uint8_t*>(state.data) + at);
}

template <class Grad, class Master>
void coded_adam(const UpdateConstants& constants, int64_t begin, int64_t n, const Grad* grad,
                const Master& master, const UpdateArrays& arrays) {
  const rules::Lanes a(constants);
  CodedMoments moments[kCodedGroup];
  for (int64_t at = begin; at < begin + n; at += kBlock) {
    const int64_t blocks = std::min(kBlock, begin + n - at) / kStateBlock;
    for (int64_t b = 0; b < blocks; ++b) {
      coded_adam_block(a, at + b * kStateBlock, grad, master, arrays.state, moments[b]);
    }
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t block = at + b * kStateBlock;
      code_block<true>(arrays.state[0], block, moments[b].mean_scale, moments[b].means);
      code_block<false>(arrays.state[1], block, moments[b].square_scale, moments[b].squares);
    }
  }
}

// Whether the types are those that coded_adam is compiled for, and n whole blocks of codes.
template <class Grad>
bool coded_masters(const UpdateConstants& constants, int64_t begin, int64_t n,
                   const UpdateArrays& a) {
  const auto* grad = static_cast<const Grad*>(a.grad);
  const auto run = [&](const auto& master) {
    coded_adam(constants, begin, n, grad, master, a);
    return true;
  };
  if (a.low != nullptr) return run(SplitMaster{a.weight, a.low});
  if (a.master == nullptr) return false;
  if (a.model_kind == NumberKind::kNone) return run(StoredMaster<float>{a.master});
  if (a.model_kind != NumberKind::kBf16) return false;
  return run(CopiedMaster{a.master, static_cast<bfloat16*>(a.model)});
}
bool coded(const UpdateConstants& constants, int64_t begin, int64_t n, const UpdateArrays& a) {
  if (n % kStateBlock != 0 || a.state[0].kind != StateKind::kInt8 ||
      a.state[1].kind != StateKind::kUInt8) {
    return false;
  }
  if (a.grad_kind == NumberKind::kFp32) return coded_masters<float>(constants, begin, n, a);
  if (a.grad_kind == NumberKind::kBf16) return coded_masters<bfloat16>(constants, begin, n, a);
  return false;
}
#endif

// ---- the direct loop ----

template <class Rule, class Grad, class State, class MakeMaster>
void direct_chunk(const Call& call, int64_t begin, const MakeMaster& master_at) {
  const UpdateArrays& a = *call.arrays;
  const int64_t chunk = begin / kUpdateChunk;
  for (int64_t k = call.first[chunk]; k < call.first[chunk + 1]; ++k) {
    const UpdatePiece& piece = call.pieces[k];
    const auto state = [&](int which) {
      return which < Rule::kStates ? static_cast<State*>(a.state[which].data) + piece.begin
                                   : nullptr;
    };
    apply<Rule>(call.constants[piece.hyper], piece.end - piece.begin,
                static_cast<const Grad*>(a.grad) + piece.begin, master_at(piece.begin),
                States<State>{state(0), state(1), state(2)});
  }
}

template <class Rule, class Grad, class State>
bool direct_masters(const Call& call, int64_t begin) {
  const UpdateArrays& a = *call.arrays;
  if (a.low != nullptr) {
    direct_chunk<Rule, Grad, State>(call, begin, [&](int64_t i) {
      return SplitMaster{a.weight + i, a.low + i};
    });
  } else if (a.master == nullptr) {
    if (a.model_kind != NumberKind::kBf16) return false;
    auto* weights = static_cast<bfloat16*>(a.model);
    direct_chunk<Rule, Grad, State>(call, begin,
                                    [&](int64_t i) { return StoredMaster<bfloat16>{weights + i}; });
  } else if (a.model_kind == NumberKind::kNone) {
    direct_chunk<Rule, Grad, State>(call, begin,
                                    [&](int64_t i) { return StoredMaster<float>{a.master + i}; });
  } else if (a.model_kind == NumberKind::kBf16) {
    auto* model = static_cast<bfloat16*>(a.model);
    direct_chunk<Rule, Grad, State>(call, begin, [&](int64_t i) {
      return CopiedMaster{a.master + i, model + i};
    });
  } else {
    return false;
  }
  return true;
}

// Whether it ran: Adam has a direct loop for the common types, the others for fp32 alone.
template <class Rule>
bool direct(const Call& call, int64_t begin) {
  const UpdateArrays& a = *call.arrays;
  const auto kept_as = [&](StateKind kind) {
    for (int which = 0; which < Rule::kStates; ++which) {
      if (a.state[which].kind != kind) return false;
    }
    return true;
  };
  if constexpr (std::is_same_v<Rule, rules::Adam>) {
    const bool fp32 = a.grad_kind == NumberKind::kFp32, bf16 = a.grad_kind == NumberKind::kBf16;
    if (kept_as(StateKind::kFp32)) {
      if (fp32) return direct_masters<Rule, float, float>(call, begin);
      if (bf16) return direct_masters<Rule, bfloat16, float>(call, begin);
    } else if (kept_as(StateKind::kBf16)) {
      if (fp32) return direct_masters<Rule, float, bfloat16>(call, begin);
      if (bf16) return direct_masters<Rule, bfloat16, bfloat16>(call, begin);
    }
    return false;
  }
  if (a.master == nullptr || a.model_kind != NumberKind::kNone ||
      a.grad_kind != NumberKind::kFp32 || !kept_as(StateKind::kFp32)) {
    return false;
  }
  direct_chunk<Rule, float, float>(call, begin,
                                   [&](int64_t i) { return StoredMaster<float>{a.master + i}; });
  return true;
}

template <class Rule>
void run_chunk(const Call& call, int64_t begin, int64_t end) {
  if constexpr (!std::is_same_v<Rule, rules::LambMoments>) {
    if (direct<Rule>(call, begin)) return;
  }
  staged_chunk<Rule>(call, begin, end,
                     [&](const UpdateConstants& constants, int64_t at, int64_t n) {
#if DS_QUANTIZE8_VECTORS
                       if constexpr (std::is_same_v<Rule, rules::Adam>) {
                         return coded(constants, at, n, *call.arrays);
                       }
#endif
                       (void)constants, (void)at, (void)n;
                       return false;
                     });
}

void update_chunk(UpdateRule rule, const UpdateConstants* constants, const UpdatePiece* pieces,
                  const int64_t* first, const UpdateArrays& arrays, int64_t begin, int64_t end) {
  const Call call{constants, pieces, first, &arrays};
  rules::visit_rule(rule, [&](auto kind) { run_chunk<decltype(kind)>(call, begin, end); });
}

// Reads and writes states for read_state and write_state below: whole blocks, one at a time.
void fetch_block(const StateArray& state, int64_t begin, int64_t n, float* buffer) {
  const float* at = fetch_state(state, begin, n, buffer);
  if (at != buffer) std::memcpy(buffer, at, static_cast<size_t>(n) * sizeof(float));
}
void keep_block(const StateArray& state, int64_t begin, int64_t n, const float* buffer) {
  if (state.kind == StateKind::kFp32) {
    std::memcpy(static_cast<float*>(state.data) + begin, buffer,
                static_cast<size_t>(n) * sizeof(float));
  } else {
    keep_state(state, begin, n, buffer);
  }
}

}  // namespace
}  // namespace ds::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::kernels {
namespace {

HWY_EXPORT(update_chunk);
HWY_EXPORT(fetch_block);
HWY_EXPORT(keep_block);

// Calls fn(block begin, block length, offset within the block, first element, count) over the
// blocks that [begin, begin + n) touches.
template <class Fn>
void for_blocks(int64_t elements, int64_t begin, int64_t n, const Fn& fn) {
  for (int64_t i = begin; i < begin + n;) {
    const int64_t block = i / kStateBlock * kStateBlock;
    const int64_t length = std::min(kStateBlock, elements - block);
    const int64_t count = std::min(block + length, begin + n) - i;
    fn(block, length, i - block, i - begin, count);
    i += count;
  }
}

}  // namespace

int update_states(UpdateRule rule) {
  return HWY_NAMESPACE::rules::visit_rule(rule, [](auto kind) { return decltype(kind)::kStates; });
}

UpdateConstants update_constants(UpdateRule rule, const UpdateHyper& hyper) {
  UpdateConstants c = common_constants(hyper);
  HWY_NAMESPACE::rules::visit_rule(rule,
                                   [&](auto kind) { decltype(kind)::set_constants(hyper, c); });
  return c;
}

void optimizer_update(UpdateRule rule, std::span<const UpdateConstants> constants,
                      std::span<const UpdatePiece> pieces, std::span<const int64_t> first,
                      const UpdateArrays& arrays, ThreadPool& pool) {
  pool.for_range(arrays.n, kUpdateChunk, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(update_chunk)
    (rule, constants.data(), pieces.data(), first.data(), arrays, begin, end);
  });
}

void read_state(const StateArray& state, int64_t elements, int64_t begin, int64_t n, float* out) {
  alignas(64) float buffer[kStateBlock];
  for_blocks(elements, begin, n,
             [&](int64_t block, int64_t length, int64_t skip, int64_t to, int64_t count) {
               HWY_DYNAMIC_DISPATCH(fetch_block)(state, block, length, buffer);
               std::memcpy(out + to, buffer + skip, static_cast<size_t>(count) * sizeof(float));
             });
}

void write_state(const StateArray& state, int64_t elements, int64_t begin, int64_t n,
                 const float* values) {
  alignas(64) float buffer[kStateBlock];
  for_blocks(elements, begin, n,
             [&](int64_t block, int64_t length, int64_t skip, int64_t from, int64_t count) {
               if (count < length) HWY_DYNAMIC_DISPATCH(fetch_block)(state, block, length, buffer);
               std::memcpy(buffer + skip, values + from,
                           static_cast<size_t>(count) * sizeof(float));
               HWY_DYNAMIC_DISPATCH(keep_block)(state, block, length, buffer);
             });
}

}  // namespace ds::kernels
#endif  // HWY_ONCE
