// Optimizer updates on a GPU: one kernel per rule and type of states, for all tensors of a run. A
// warp has a block of kStateBlock elements at a time, each lane two packs of four, so that arrays
// are read and written once and 8-bit states have their scale from one exchange within the warp.
#include <cmath>

#include "kernels/cuda/exact_sum.cuh"
#include "kernels/cuda/warp_block.cuh"
#include "kernels/optimizer/quantize8.cuh"
#include "kernels/optimizer/rules.cuh"
#include "kernels/optimizer/split_master.h"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
using Own = WarpBlock<2>;
constexpr int kOwn = Own::kOwn;
static_assert(kOwn * kWarp == kStateBlock);

struct Call {
  UpdateArrays arrays;
  const UpdatePiece* pieces;
  const int64_t* first;
  const UpdateConstants* constants;  // or null: in `few`
  bool wide;                         // all arrays allow packs
  UpdateConstants few[kFewConstants];
};

__device__ __forceinline__ UpdateConstants constants_of(const Call& call,
                                                        const UpdatePiece& piece) {
  UpdateConstants c =
      call.constants != nullptr ? call.constants[piece.hyper] : call.few[piece.hyper];
  if (call.arrays.gate != nullptr) c.grad_scale = call.arrays.gate->grad_scale;
  return c;
}

__device__ __forceinline__ void read_number(const Own& own, NumberKind kind, const void* from,
                                            float* to) {
  if (kind == NumberKind::kFp32) {
    own.read(static_cast<const float*>(from), to);
  } else if (kind == NumberKind::kBf16) {
    own.read_wide<bfloat16>(from, to);
  } else {
    own.read_wide<float16>(from, to);
  }
}

__device__ __forceinline__ void read_master(const Own& own, const UpdateArrays& a, float* p) {
  if (a.master != nullptr) return own.read(a.master, p);
  bfloat16 weight[kOwn];
  uint16_t low[kOwn];
  own.read(a.weight, weight);
  own.read(a.low, low);
#pragma unroll
  for (int e = 0; e < kOwn; ++e) p[e] = join_master(weight[e], low[e]);
}

__device__ __forceinline__ void write_master(const Own& own, const UpdateArrays& a, unsigned mask,
                                             const float* p) {
  if (a.master == nullptr) {
    bfloat16 weight[kOwn];
    uint16_t low[kOwn];
#pragma unroll
    for (int e = 0; e < kOwn; ++e) split_master(p[e], weight[e], low[e]);
    own.write(mask, weight, a.weight);
    return own.write(mask, low, a.low);
  }
  own.write(mask, p, a.master);
  if (a.model_kind == NumberKind::kBf16) own.write_narrow<bfloat16>(mask, p, a.model);
  if (a.model_kind == NumberKind::kFp16) own.write_narrow<float16>(mask, p, a.model);
}

// How states are kept, by kernel.
enum class Kept { kFp32, kBf16, kCodes };

template <bool kSigned>
__device__ __forceinline__ void decode_block(const uint8_t* codes, float scale, float* to) {
#pragma unroll
  for (int e = 0; e < kOwn; ++e) to[e] = quantize8::decode<kSigned>(codes[e], scale);
}
template <bool kSigned>
__device__ __forceinline__ void encode_block(const float* from, float inverse, uint8_t* codes) {
#pragma unroll
  for (int e = 0; e < kOwn; ++e) codes[e] = quantize8::encode<kSigned>(from[e], inverse);
}

template <Kept kKept>
__device__ __forceinline__ void read_state(const Own& own, const StateArray& state, float* to) {
  if constexpr (kKept == Kept::kFp32) {
    own.read(static_cast<const float*>(state.data), to);
  } else if constexpr (kKept == Kept::kBf16) {
    own.read_wide<bfloat16>(state.data, to);
  } else {
    uint8_t codes[kOwn];
    own.read(static_cast<const uint8_t*>(state.data), codes);
    const float scale = state.scales[own.first / kStateBlock];
    if (state.kind == StateKind::kInt8) {
      decode_block<true>(codes, scale, to);
    } else {
      decode_block<false>(codes, scale, to);
    }
  }
}

// Codes have their scale in common: those of the whole block are written.
template <Kept kKept>
__device__ __forceinline__ void write_state(const Own& own, const StateArray& state, unsigned mask,
                                            unsigned inside, const float* from) {
  if constexpr (kKept == Kept::kFp32) {
    own.write(mask, from, static_cast<float*>(state.data));
  } else if constexpr (kKept == Kept::kBf16) {
    own.write_narrow<bfloat16>(mask, from, state.data);
  } else {
    float largest = 0;
#pragma unroll
    for (int e = 0; e < kOwn; ++e) largest = fmaxf(largest, fabsf(from[e]));
    const float scale = quantize8::scale_of(warp_max(largest));
    const float inverse = scale > 0 ? __frcp_rn(scale) : 0;
    uint8_t codes[kOwn];
    if (state.kind == StateKind::kInt8) {
      encode_block<true>(from, inverse, codes);
    } else {
      encode_block<false>(from, inverse, codes);
    }
    own.write(inside, codes, static_cast<uint8_t*>(state.data));
    if (own.lane == 0) state.scales[own.first / kStateBlock] = scale;
  }
}

template <class Rule, Kept kKept>
__global__ void __launch_bounds__(kThreads) update_blocks(const __grid_constant__ Call call) {
  const UpdateArrays& a = call.arrays;
  if (a.gate != nullptr && a.gate->open == 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t block = (int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp) * kStateBlock;
       block < a.n; block += warps * kStateBlock) {
    const int64_t end = block + kStateBlock < a.n ? block + kStateBlock : a.n;
    // The first piece that ends behind the block's beginning.
    int64_t k = call.first[block / kUpdateChunk], stop = call.first[block / kUpdateChunk + 1];
    for (int64_t high = stop; k < high;) {
      const int64_t middle = (k + high) / 2;
      if (call.pieces[middle].end <= block) {
        k = middle + 1;
      } else {
        high = middle;
      }
    }
    if (k == stop || call.pieces[k].begin >= end) continue;
    const Own own{block, a.n, lane, call.wide};
    float g[kOwn] = {}, p[kOwn] = {}, s[kOwn] = {}, t[kOwn] = {}, u[kOwn] = {};
    if constexpr (Rule::kReadsGrad) read_number(own, a.grad_kind, a.grad, g);
    if constexpr (Rule::kReadsMaster) read_master(own, a, p);
    if constexpr (Rule::kStates >= 1) read_state<kKept>(own, a.state[0], s);
    if constexpr (Rule::kStates >= 2) read_state<kKept>(own, a.state[1], t);
    if constexpr (Rule::kStates >= 3) read_state<kKept>(own, a.state[2], u);
    unsigned mask = 0;
    for (; k < stop; ++k) {
      const UpdatePiece piece = call.pieces[k];
      if (piece.begin >= end) break;
      const rules::Element c(constants_of(call, piece));
      const unsigned bits = own.bits_within(piece.begin, piece.end);
      mask |= bits;
#pragma unroll
      for (int e = 0; e < kOwn; ++e) {
        if ((bits >> e & 1u) == 0) continue;
        if constexpr (Rule::kStates >= 3) {
          Rule::apply(c, g[e], p[e], s[e], t[e], u[e]);
        } else {
          Rule::apply(c, g[e], p[e], s[e], t[e]);
        }
      }
    }
    if constexpr (Rule::kWritesMaster) write_master(own, a, mask, p);
    if constexpr (Rule::kWritesStates) {
      const unsigned inside = kKept == Kept::kCodes ? own.bits_within(block, end) : 0;
      if constexpr (Rule::kStates >= 1) write_state<kKept>(own, a.state[0], mask, inside, s);
      if constexpr (Rule::kStates >= 2) write_state<kKept>(own, a.state[1], mask, inside, t);
      if constexpr (Rule::kStates >= 3) write_state<kKept>(own, a.state[2], mask, inside, u);
    }
  }
}

// One element of a state.
template <Kept kKept>
__device__ __forceinline__ float state_at(const StateArray& state, int64_t i) {
  if constexpr (kKept == Kept::kFp32) {
    return static_cast<const float*>(state.data)[i];
  } else if constexpr (kKept == Kept::kBf16) {
    return widen(static_cast<const bfloat16*>(state.data)[i]);
  } else {
    const uint8_t code = static_cast<const uint8_t*>(state.data)[i];
    const float scale = state.scales[i / kStateBlock];
    return state.kind == StateKind::kInt8 ? quantize8::decode<true>(code, scale)
                                          : quantize8::decode<false>(code, scale);
  }
}
__device__ __forceinline__ float master_at(const UpdateArrays& a, int64_t i) {
  return a.master != nullptr ? a.master[i] : join_master(a.weight[i], a.low[i]);
}

// A piece's sums of the squares of parameters and of the update that LambApply will make, from the
// states as they are kept. A warp adds up kNormBlock elements at a time.
static_assert(kNormBlock == kWarp);
template <Kept kKept>
__global__ void __launch_bounds__(kThreads) lamb_norms(const __grid_constant__ Call call) {
  __shared__ unsigned long long words[2][ExactSum::kWords];
  const UpdateArrays& a = call.arrays;
  const UpdatePiece piece = call.pieces[blockIdx.x];
  const rules::Element c(constants_of(call, piece));
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x < 2 * ExactSum::kWords) words[0][threadIdx.x] = 0;
  __syncthreads();
  ExactWindow weights, updates;
  for (int64_t block = piece.begin + warp * kNormBlock; block < piece.end;
       block += kWarps * kNormBlock) {
    const int64_t i = block + lane;
    double weight = 0, update = 0;
    if (i < piece.end) {
      const float p = master_at(a, i);
      weight = p;
      update = rules::lamb_direction(c, p, state_at<kKept>(a.state[0], i),
                                     state_at<kKept>(a.state[1], i));
    }
    weight = warp_sum(weight * weight);
    update = warp_sum(update * update);
    if (lane == 0) {
      weights.add(weight, words[0]);
      updates.add(update, words[1]);
    }
  }
  weights.flush(words[0]);
  updates.flush(words[1]);
  __syncthreads();
  if (threadIdx.x < 2) {
    write_carried(words[threadIdx.x],
                  a.norm_words + (2 * int64_t{blockIdx.x} + threadIdx.x) * ExactSum::kWords);
  }
}

bool all_wide(const UpdateArrays& a) {
  const auto fits = [](const void* pointer, size_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % (kPackOf * bytes) == 0;
  };
  const auto state_bytes = [](StateKind kind) -> size_t {
    return kind == StateKind::kFp32 ? 4 : kind == StateKind::kBf16 ? 2 : 1;
  };
  return fits(a.grad, a.grad_kind == NumberKind::kFp32 ? 4 : 2) && fits(a.master, 4) &&
         fits(a.weight, 2) && fits(a.low, 2) && fits(a.model, 2) &&
         fits(a.state[0].data, state_bytes(a.state[0].kind)) &&
         fits(a.state[1].data, state_bytes(a.state[1].kind)) &&
         fits(a.state[2].data, state_bytes(a.state[2].kind));
}

template <class Rule, Kept kKept>
void run(const Call& call, int64_t pieces, const GpuStream& on) {
  const int64_t blocks = (call.arrays.n + kStateBlock - 1) / kStateBlock;
  launch(on, "optimizer_update", &update_blocks<Rule, kKept>,
         grid_for(on, blocks * kWarp, kThreads), call);
  if constexpr (std::is_same_v<Rule, rules::LambMoments>) {
    launch(on, "optimizer_update", &lamb_norms<kKept>, {pieces, kThreads}, call);
  }
}

template <class Rule>
void run(const Call& call, int64_t pieces, const GpuStream& on) {
  if constexpr (Rule::kStates > 0) {
    switch (call.arrays.state[0].kind) {
      case StateKind::kBf16:
        return run<Rule, Kept::kBf16>(call, pieces, on);
      case StateKind::kInt8:
      case StateKind::kUInt8:
        return run<Rule, Kept::kCodes>(call, pieces, on);
      default:
        break;
    }
  }
  run<Rule, Kept::kFp32>(call, pieces, on);
}

}  // namespace

void optimizer_update(UpdateRule rule, std::span<const UpdateConstants> constants,
                      std::span<const UpdatePiece> pieces, std::span<const int64_t> first,
                      const UpdateArrays& arrays, const GpuStream& on) {
  if (arrays.n == 0 || pieces.empty()) return;
  Call call;
  call.arrays = arrays;
  call.pieces = pieces.data();
  call.first = first.data();
  call.constants = constants.data();
  call.wide = all_wide(arrays);
  if (constants.size() <= kFewConstants) {
    call.constants = nullptr;
    std::copy(constants.begin(), constants.end(), call.few);
  }
  const auto count = static_cast<int64_t>(pieces.size());
  rules::visit_rule(rule, [&](auto kind) { run<decltype(kind)>(call, count, on); });
}

}  // namespace ds::kernels
