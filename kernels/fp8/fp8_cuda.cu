// Casts to 8 bits on a GPU, with the CPU's bits: tiles of 64 x 64 elements are read once and leave
// by rows and, through shared memory, by columns.
#include "base/error.h"
#include "kernels/activation/functions.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/fp8/codes.h"
#include "kernels/fp8/fp8.h"
#include "kernels/matmul/matmul_cublaslt.h"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kTile = kFp8SumRows;
constexpr int kPackOfX = kPack<bfloat16>;         // elements that a thread reads at once
constexpr int kAcross = kTile / kPackOfX;         // threads along a row
constexpr int kRowsAtOnce = kThreads / kAcross;   // rows of a pass
constexpr int kPitch = kTile + 4;                 // of the tile that is transposed
constexpr int kPiece = kTile * kTile / kThreads;  // codes of a thread that leave by columns

// The code by integers: for numbers that are not finite, and where the hardware has no conversion.
template <Fp8Format kFormat>
__device__ __forceinline__ void codes_by_integers(const float* x, float scale, uint8_t* to) {
#pragma unroll
  for (int i = 0; i < kPackOfX; ++i) to[i] = fp8_code<kFormat>(x[i], scale);
}

template <Fp8Format kFormat>
__device__ __forceinline__ void codes_of(const float* x, float scale, [[maybe_unused]] bool finite,
                                         uint8_t* to) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if (finite) {
#pragma unroll
    for (int i = 0; i < kPackOfX; i += 2) {
      unsigned short two;
      const float low = x[i] * scale, high = x[i + 1] * scale;
      if constexpr (kFormat == Fp8Format::kE4M3) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
      } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
      }
      to[i] = static_cast<uint8_t>(two & 0xFFu);
      to[i + 1] = static_cast<uint8_t>(two >> 8);
    }
    return;
  }
#endif
  codes_by_integers<kFormat>(x, scale, to);
}

// |x| of finite numbers have the order of their bits.
__device__ __forceinline__ void note_largest(float most, float* amax) {
  __shared__ float of_warps[kThreads / kWarp];
  most = warp_max(most);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads / kWarp; ++i) most = fmaxf(most, of_warps[i]);
  if (most > 0) atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(most));
}

// The column sums of a tile, from those of each thread's rows: threads with the same columns lie
// kAcross apart.
__device__ __forceinline__ void store_sums(float* sums, const Fp8Cast& c, int64_t tile_row,
                                           int64_t first_column) {
  __shared__ float of_warps[kThreads / kWarp][kTile];
#pragma unroll
  for (int i = 0; i < kPackOfX; ++i) {
#pragma unroll
    for (int apart = kAcross; apart < kWarp; apart *= 2) {
      sums[i] += __shfl_xor_sync(kAllLanes, sums[i], apart);
    }
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane < kAcross) {
#pragma unroll
    for (int i = 0; i < kPackOfX; ++i) {
      of_warps[threadIdx.x / kWarp][lane * kPackOfX + i] = sums[i];
    }
  }
  __syncthreads();
  const int64_t column = first_column + threadIdx.x;
  if (threadIdx.x >= kTile || column >= c.columns) return;
  float total = 0;
  for (int warp = 0; warp < kThreads / kWarp; ++warp) total += of_warps[warp][threadIdx.x];
  c.partials[tile_row * c.columns + column] = total;
}

__global__ void add_parts(const float* partials, int64_t parts, int64_t columns, float* sums) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float total = 0;
#pragma unroll 8
  for (int64_t part = 0; part < parts; ++part) total += partials[part * columns + column];
  sums[column] += total;
}

// What is cast, by what it is made of: x, f(x), f(x) * up, dy * f'(x).
enum class Made { kAsItIs, kValue, kGated, kSlope };

// N numbers from a place on, with the roundings of activation_cuda.cu.
template <Made kMade, int N>
__device__ __forceinline__ void numbers_at(const Fp8Cast& c, ActivationKind kind, int64_t row,
                                           int64_t column, float* x) {
  widen_pack(load_pack<bfloat16, N>(c.x + row * c.stride + column), x);
  if constexpr (kMade == Made::kAsItIs) return;
  [[maybe_unused]] float other[N];
  if constexpr (kMade == Made::kGated || kMade == Made::kSlope) {
    const bfloat16* const from = kMade == Made::kGated ? c.up : c.dy;
    widen_pack(load_pack<bfloat16, N>(from + row * c.other_stride + column), other);
  }
  with_function(kind, [&](auto f) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kMade == Made::kValue) x[i] = f.value(x[i]);
      if constexpr (kMade == Made::kGated) x[i] = f.value(x[i]) * other[i];
      if constexpr (kMade == Made::kSlope) x[i] = other[i] * f.both(x[i]).slope;
    }
  });
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = widen(narrow<bfloat16>(x[i]));
}

// kWide: packs of x, of codes and of transposed codes are aligned. kSums: column sums are wanted.
template <Fp8Format kFormat, Made kMade, bool kWide, bool kSums>
__global__ void __launch_bounds__(kThreads)
    cast_tiles(Fp8Cast c, ActivationKind kind, int64_t tiles_across) {
  __shared__ uint32_t words[kTile * kPitch / 4];
  uint8_t* const tile = reinterpret_cast<uint8_t*>(words);
  const int64_t first_row = blockIdx.x / tiles_across * kTile;
  const int64_t first_column = blockIdx.x % tiles_across * kTile;
  const int in_column = static_cast<int>(threadIdx.x) % kAcross * kPackOfX;
  const int64_t column = first_column + in_column;
  const float scale = *c.scale;
  float most = 0;
  [[maybe_unused]] float sums[kPackOfX] = {};
#pragma unroll
  for (int pass = 0; pass < kTile / kRowsAtOnce; ++pass) {
    const int in_row = pass * kRowsAtOnce + static_cast<int>(threadIdx.x) / kAcross;
    const int64_t row = first_row + in_row;
    float x[kPackOfX] = {};
    const bool whole = kWide && row < c.rows && column + kPackOfX <= c.columns;
    if (whole) {
      numbers_at<kMade, kPackOfX>(c, kind, row, column, x);
    } else if (row < c.rows) {
      for (int i = 0; i < kPackOfX; ++i) {
        if (column + i < c.columns) numbers_at<kMade, 1>(c, kind, row, column + i, x + i);
      }
    }
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kPackOfX; ++i) {
      finite = finite && (__float_as_uint(x[i]) & 0x7FFFFFFFu) < 0x7F800000u;
      most = fmaxf(most, finite_size(x[i]));
      if constexpr (kSums) sums[i] += x[i];
    }
    Pack<uint8_t, kPackOfX> codes;
    codes_of<kFormat>(x, scale, finite, codes.at);
    if (c.codes != nullptr && whole) {
      store_pack(c.codes + row * c.columns + column, codes);
    } else if (c.codes != nullptr && row < c.rows) {
      for (int i = 0; i < kPackOfX; ++i) {
        if (column + i < c.columns) c.codes[row * c.columns + column + i] = codes.at[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kPackOfX; ++i) tile[(in_column + i) * kPitch + in_row] = codes.at[i];
  }
  note_largest(most, c.amax);  // waits for the tile, too
  if constexpr (kSums) store_sums(sums, c, blockIdx.x / tiles_across, first_column);
  if (c.transposed == nullptr) return;
  const int out_column = static_cast<int>(threadIdx.x) * kPiece / kTile;
  const int out_row = static_cast<int>(threadIdx.x) * kPiece % kTile;
  if (first_column + out_column >= c.columns) return;
  const uint8_t* const from = tile + out_column * kPitch + out_row;
  const int64_t row = first_row + out_row;
  uint8_t* const to = c.transposed + (first_column + out_column) * c.rows + row;
  if (kWide && row + kPiece <= c.rows) {
    Pack<uint32_t, kPiece / 4> piece;
#pragma unroll
    for (int i = 0; i < kPiece / 4; ++i) {
      piece.at[i] = reinterpret_cast<const uint32_t*>(from)[i];
    }
    store_pack(reinterpret_cast<uint32_t*>(to), piece);
  } else {
    for (int i = 0; i < kPiece; ++i) {
      if (row + i < c.rows) to[i] = from[i];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    find_largest(const bfloat16* x, int64_t rows, int64_t columns, int64_t stride, float* amax) {
  float most = 0;
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < rows * columns;
       at += int64_t{gridDim.x} * kThreads) {
    most = fmaxf(most, finite_size(widen(x[at / columns * stride + at % columns])));
  }
  note_largest(most, amax);
}

__global__ void make_first_scale(Fp8FirstScale c) {
  if (*c.scale > 0) return;
  const float most = *c.amax;
  const float scale = most > 0 ? fp8_scale(c.format, most, c.margin) : 1.0f;
  *c.scale = scale;
  *c.inverse = fp8_inverse(scale);
}

struct Kinds {
  Fp8Format format[kMostFp8Kinds];
};

__global__ void update_scales(Fp8Update c, Kinds kinds) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (t < c.tensors) fp8_update_one(c, kinds.format[t % c.kinds], t);
}

template <Fp8Format kFormat>
struct Widen {
  const float* inverse;
  template <int N>
  __device__ __forceinline__ void operator()(Pack<bfloat16, N>& out,
                                             const Pack<uint8_t, N>& codes) const {
    const float by = *inverse;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      out.at[i] = narrow<bfloat16>(fp8_value<kFormat>(codes.at[i]) * by);
    }
  }
};

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// Calls use(made) with what is cast as a std::integral_constant.
template <class Use>
void with_made(const Fp8Cast& c, const Use& use) {
  if (!c.activation) return use(std::integral_constant<Made, Made::kAsItIs>());
  if (c.up != nullptr) return use(std::integral_constant<Made, Made::kGated>());
  if (c.dy != nullptr) return use(std::integral_constant<Made, Made::kSlope>());
  use(std::integral_constant<Made, Made::kValue>());
}

template <Fp8Format kFormat, Made kMade, bool kSums>
void launch_cast(const Fp8Cast& c, const GpuStream& on) {
  const int64_t across = divide_up(c.columns, kTile), tiles = divide_up(c.rows, kTile) * across;
  const auto aligned = [](const void* at, size_t to) {
    return reinterpret_cast<uintptr_t>(at) % to == 0;
  };
  const bool wide = c.stride % kPackOfX == 0 && c.other_stride % kPackOfX == 0 &&
                    aligned(c.x, 16) && aligned(c.up, 16) && aligned(c.dy, 16) &&
                    (c.codes == nullptr || (c.columns % 8 == 0 && aligned(c.codes, 8))) &&
                    (c.transposed == nullptr || (c.rows % 16 == 0 && aligned(c.transposed, 16)));
  launch(
      on, "fp8_cast",
      wide ? &cast_tiles<kFormat, kMade, true, kSums> : &cast_tiles<kFormat, kMade, false, kSums>,
      {tiles, kThreads}, c, c.activation.value_or(ActivationKind::kRelu), across);
}

}  // namespace

void fp8_cast(const Fp8Cast& c, const GpuStream& on) {
  with_fp8_format(c.format, [&](auto format) {
    with_made(c, [&](auto made) {
      constexpr Fp8Format kFormat = decltype(format)::value;
      constexpr Made kMade = decltype(made)::value;
      if (c.sums == nullptr) return launch_cast<kFormat, kMade, false>(c, on);
      if constexpr (kMade == Made::kAsItIs || kMade == Made::kSlope) {
        launch_cast<kFormat, kMade, true>(c, on);
      } else {
        fail(Code::kInternal, "fp8_cast sums no columns of an activation");
      }
    });
  });
  if (c.sums == nullptr) return;
  launch(on, "fp8_cast", &add_parts, {divide_up(c.columns, 128), 128},
         static_cast<const float*>(c.partials), fp8_sum_parts(c.rows), c.columns, c.sums);
}

void fp8_first_scale(const Fp8FirstScale& c, const GpuStream& on) {
  launch(on, "fp8_first_scale", &find_largest, grid_for(on, c.rows * c.columns, kThreads), c.x,
         c.rows, c.columns, c.stride, c.amax);
  launch(on, "fp8_first_scale", &make_first_scale, {1, 1}, c);
}

void fp8_widen(Fp8Format format, const uint8_t* codes, int64_t n, const float* inverse,
               bfloat16* out, const GpuStream& on) {
  with_fp8_format(format, [&](auto f) {
    map_each<kPackOfX>(on, "fp8_widen", Widen<decltype(f)::value>{inverse}, n, std::tuple(out),
                       std::tuple(codes));
  });
}

void fp8_update(const Fp8Update& c, const GpuStream& on) {
  DS_CHECK(c.kinds >= 1 && c.kinds <= kMostFp8Kinds, Code::kInternal, "kinds of fp8 tensors");
  Kinds kinds{};
  for (int64_t i = 0; i < c.kinds; ++i) kinds.format[i] = c.formats[i];
  launch(on, "fp8_update", &update_scales, {divide_up(c.tensors, 128), 128}, c, kinds);
}

bool fp8_matmul(const Fp8Matmul& p, const GpuStream& on) {
  return p.m > 0 && p.n > 0 && p.k > 0 && cublaslt::multiply_fp8(p, on);
}

int64_t fp8_matmul_workspace(const Fp8Matmul& p, const GpuStream& on) {
  return cublaslt::workspace_fp8(p, on).value_or(0);
}

}  // namespace ds::kernels
