// Blocks to codes and back on a GPU, with the CPU's bits: a warp has a block, and reads and writes
// it once. NaNs differ in what they carry.
#include <limits>

#include "kernels/cuda/warp_block.cuh"
#include "kernels/quantize/block_quantize.h"
#include "kernels/quantize/rounding.h"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kPacks = static_cast<int>(kMostBlockElements) / kWarp / kPackOf;
using Own = WarpBlock<kPacks>;
constexpr int kOwn = Own::kOwn;
static_assert(kOwn * kWarp == kMostBlockElements);

// Blocks of one length behind each other.
struct Run {
  int64_t begin = 0;  // its first element
  int32_t length = 0;
  int32_t end = 0;  // blocks of this run and those before it
};

// The blocks of a launch. Most blocks have the greatest length, so that few runs are many blocks.
struct Blocks {
  static constexpr int kMost = 128;
  int count = 0;
  int64_t first = 0;  // of all blocks
  Run runs[kMost];
};

// Calls fn(blocks) for parts of all blocks.
template <class Fn>
void for_parts(BlockBegins begins, const Fn& fn) {
  Blocks part;
  for (int64_t i = 0; i < block_count(begins); ++i) {
    const int64_t begin = begins[static_cast<size_t>(i)];
    const auto length = static_cast<int32_t>(begins[static_cast<size_t>(i) + 1] - begin);
    const auto blocks = static_cast<int32_t>(i - part.first);
    if (part.count == 0 || part.runs[part.count - 1].length != length) {
      if (part.count == Blocks::kMost) {
        fn(part);
        part.count = 0;
        part.first = i;
      }
      part.runs[part.count++] = {begin, length, blocks};
    }
    part.runs[part.count - 1].end = static_cast<int32_t>(i + 1 - part.first);
  }
  if (part.count > 0) fn(part);
}

struct Place {
  int64_t index;  // of all blocks; -1: none
  Own own;
};

// The warp's block. `wide`: the arrays allow packs where a block begins at a multiple of them.
__device__ __forceinline__ Place place_of(const Blocks& blocks, bool wide) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t block = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (block >= blocks.runs[blocks.count - 1].end) return {-1, {0, 0, lane, false}};
  int low = 0, high = blocks.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (blocks.runs[middle].end > block) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const Run& run = blocks.runs[low];
  const int64_t in_run = block - (low > 0 ? blocks.runs[low - 1].end : 0);
  const int64_t begin = run.begin + in_run * run.length;
  return {blocks.first + block, {begin, begin + run.length, lane, wide && begin % kPackOf == 0}};
}

struct Scale {
  float stored, inverse;
};

// As scales_of has it on the CPU. What lies beyond the block is 0.
template <int kBits>
__device__ __forceinline__ Scale scale_of(const float (&x)[kOwn]) {
  float below = 0, above = 0;  // how far the block reaches
  bool finite = true;
#pragma unroll
  for (int e = 0; e < kOwn; ++e) {
    below = -x[e] > below ? -x[e] : below;
    above = x[e] > above ? x[e] : above;
    finite = finite && x[e] - x[e] == 0;
  }
  if (__all_sync(kAllLanes, finite) == 0) return {std::numeric_limits<float>::quiet_NaN(), 0};
  below = warp_max(below);
  above = warp_max(above);
  const float scale = (below >= above ? -below : above) / static_cast<float>(-(1 << (kBits - 1)));
  const float inverse = inverse_of(scale);
  return {inverse == 0 ? 0.0f : scale, inverse};
}

template <int kBits>
__device__ __forceinline__ int code_of(float x, float inverse) {
  constexpr int kMost = (1 << (kBits - 1)) - 1;
  return inverse == 0 ? 0 : nearest_code(x * inverse, -kMost - 1, kMost);
}

template <int kBits>
__device__ __forceinline__ void write_codes(const Own& own, const int (&code)[kOwn], uint8_t* to) {
  if constexpr (kBits == 8) {
    uint8_t bytes[kOwn];
#pragma unroll
    for (int e = 0; e < kOwn; ++e) bytes[e] = static_cast<uint8_t>(code[e]);
    own.write(own.bits_within(own.first, own.end), bytes, to);
  } else {
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      Pack<uint8_t, kPackOf / 2> pairs;
#pragma unroll
      for (int i = 0; i < kPackOf / 2; ++i) {
        const int e = pack * kPackOf + 2 * i;
        pairs.at[i] = static_cast<uint8_t>((code[e] & 15) << 4 | (code[e + 1] & 15));
      }
      if (own.whole(pack)) {
        store_pack(to + own.at(pack) / 2, pairs);
      } else {
#pragma unroll
        for (int i = 0; i < kPackOf / 2; ++i) {
          const int64_t at = own.at(pack) + 2 * i;
          if (at < own.end) to[at / 2] = pairs.at[i];
        }
      }
    }
  }
}

template <int kBits>
__device__ __forceinline__ void read_codes(const Own& own, const uint8_t* from, int (&code)[kOwn]) {
  if constexpr (kBits == 8) {
    uint8_t bytes[kOwn];
    own.read(from, bytes);
#pragma unroll
    for (int e = 0; e < kOwn; ++e) code[e] = static_cast<int8_t>(bytes[e]);
  } else {
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      Pack<uint8_t, kPackOf / 2> pairs;
      if (own.whole(pack)) {
        pairs = load_pack<uint8_t, kPackOf / 2>(from + own.at(pack) / 2);
      } else {
#pragma unroll
        for (int i = 0; i < kPackOf / 2; ++i) {
          const int64_t at = own.at(pack) + 2 * i;
          pairs.at[i] = at < own.end ? from[at / 2] : uint8_t{0};
        }
      }
#pragma unroll
      for (int i = 0; i < kPackOf / 2; ++i) {
        const int e = pack * kPackOf + 2 * i;
        code[e] = static_cast<int8_t>(pairs.at[i]) >> 4;
        code[e + 1] = static_cast<int8_t>(pairs.at[i] << 4) >> 4;
      }
    }
  }
}

template <int kBits, class T, bool kKeepsError>
__global__ void __launch_bounds__(kThreads)
    quantize_warps(const __grid_constant__ Blocks blocks, bool wide, const T* x, uint8_t* codes,
                   float* scales, const RoundingError error) {
  const auto [index, own] = place_of(blocks, wide);
  if (index < 0) return;
  float v[kOwn], old[kOwn];
  int code[kOwn];
  own.template read_wide<T>(x, v);
  if constexpr (kKeepsError) {
    read_codes<8>(own, error.codes, code);
    const float old_scale = error.scales[index];
#pragma unroll
    for (int e = 0; e < kOwn; ++e) {
      old[e] = own.of(e) < own.end ? static_cast<float>(code[e]) * old_scale : 0.0f;
      v[e] += old[e];
    }
  }
  const Scale scale = scale_of<kBits>(v);
#pragma unroll
  for (int e = 0; e < kOwn; ++e) code[e] = code_of<kBits>(v[e], scale.inverse);
  write_codes<kBits>(own, code, codes);
  if (own.lane == 0) scales[index] = scale.stored;
  if constexpr (kKeepsError) {
#pragma unroll
    for (int e = 0; e < kOwn; ++e) {
      const float sent = static_cast<float>(code[e]) * scale.stored;
      old[e] = error.beta * old[e] + (1 - error.beta) * (v[e] - sent);
    }
    Scale of_error = scale_of<8>(old);
    if (of_error.stored - of_error.stored != 0) of_error = {0, 0};  // of an overflow: forgotten
#pragma unroll
    for (int e = 0; e < kOwn; ++e) code[e] = code_of<8>(old[e], of_error.inverse);
    write_codes<8>(own, code, error.codes);
    if (own.lane == 0) error.scales[index] = of_error.stored;
  }
}

template <int kBits, class T>
__global__ void __launch_bounds__(kThreads)
    dequantize_warps(const __grid_constant__ Blocks blocks, bool wide, const uint8_t* codes,
                     const float* scales, float factor, bool add, T* y) {
  const auto [index, own] = place_of(blocks, wide);
  if (index < 0) return;
  const float scale = scales[index] * factor;
  int code[kOwn];
  float v[kOwn], before[kOwn];
  read_codes<kBits>(own, codes, code);
  if (add) own.template read_wide<T>(y, before);
#pragma unroll
  for (int e = 0; e < kOwn; ++e) {
    v[e] = static_cast<float>(code[e]) * scale;
    if (add) v[e] = before[e] + v[e];
  }
  own.template write_narrow<T>(own.bits_within(own.first, own.end), v, y);
}

template <class Fn>
void with_bits(int bits, const Fn& fn) {
  if (bits == 8) {
    fn(std::integral_constant<int, 8>());
  } else {
    fn(std::integral_constant<int, 4>());
  }
}

// Where packs of four begin, codes of 4 bits are two bytes.
template <int kBits, class T>
bool arrays_fit(const uint8_t* codes, const T* numbers) {
  return packs_fit<kPackOf>(0, numbers) && packs_fit<kPackOf * kBits / 8>(0, codes);
}

Grid grid_of(const Blocks& blocks) {
  return {(blocks.runs[blocks.count - 1].end + kWarps - 1) / kWarps, kThreads};
}

}  // namespace

void quantize_blocks(const BlockQuantize& call, const GpuStream& on) {
  with_bits(call.bits, [&](auto b) {
    constexpr int kBits = decltype(b)::value;
    for_parts(call.begins, [&](const Blocks& blocks) {
      if (call.error != nullptr) {
        const auto* const from = static_cast<const float*>(call.x);
        const bool wide =
            arrays_fit<kBits>(call.codes, from) && packs_fit<kPackOf>(0, call.error->codes);
        launch(on, "quantize_blocks", &quantize_warps<kBits, float, true>, grid_of(blocks), blocks,
               wide, from, call.codes, call.scales, *call.error);
        return;
      }
      with_float_type(call.type, [&](auto t) {
        using T = decltype(t);
        const auto* const from = static_cast<const T*>(call.x);
        launch(on, "quantize_blocks", &quantize_warps<kBits, T, false>, grid_of(blocks), blocks,
               arrays_fit<kBits>(call.codes, from), from, call.codes, call.scales, RoundingError());
      });
    });
  });
}

void dequantize_blocks(const BlockDequantize& call, const GpuStream& on) {
  with_bits(call.bits, [&](auto b) {
    constexpr int kBits = decltype(b)::value;
    with_float_type(call.type, [&](auto t) {
      using T = decltype(t);
      auto* const to = static_cast<T*>(call.y);
      const bool wide = arrays_fit<kBits>(call.codes, static_cast<const T*>(to));
      for_parts(call.begins, [&](const Blocks& blocks) {
        launch(on, "dequantize_blocks", &dequantize_warps<kBits, T>, grid_of(blocks), blocks, wide,
               call.codes, call.scales, call.factor, call.add, to);
      });
    });
  });
}

}  // namespace ds::kernels
