// The element-wise operators on a GPU: packs of 16 bytes, one pass.
#include <type_traits>

#include "kernels/cuda/map.cuh"
#include "kernels/elementwise/elementwise.h"

namespace ds::kernels {
namespace {

using namespace cuda;

// Elements of the narrower type that 16 bytes hold.
template <class X, class Y>
inline constexpr int kBothPack = kPack<X> > kPack<Y> ? kPack<X> : kPack<Y>;

struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return narrow<T>(widen(a) + widen(b));
  }
};

struct Scaled {
  float factor;
  template <class T>
  __device__ __forceinline__ T operator()(T x) const {
    return narrow<T>(widen(x) * factor);
  }
};

template <class T>
struct Constant {
  T value;
  __device__ __forceinline__ T operator()() const { return value; }
};

struct Accumulated {
  float factor;
  template <class X, class Y>
  __device__ __forceinline__ Y operator()(X x, Y sum) const {
    return narrow<Y>(fmaf(factor, widen(x), widen(sum)));
  }
};

// Many arrays at once: blocks of one launch are shared out among them.
template <class X, class Y>
struct Parts {
  static constexpr int kMost = 64;
  int count = 0;
  float factor = 0;
  const X* x[kMost] = {};
  Y* sum[kMost] = {};
  int64_t n[kMost] = {};
  int64_t end[kMost] = {};  // blocks of this array and those before it
  int8_t head[kMost] = {};  // -1: without packs
};

template <class X, class Y>
__global__ void __launch_bounds__(kMapThreads)
    accumulate_parts(const __grid_constant__ Parts<X, Y> parts) {
  constexpr int kN = kBothPack<X, Y>;
  const int64_t block = blockIdx.x;
  int low = 0, high = parts.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (parts.end[middle] > block) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const int64_t at = block - (low > 0 ? parts.end[low - 1] : 0);
  Y* const sum = parts.sum[low];
  const EachBody<Each<Accumulated>, std::tuple<Y*>, std::tuple<const X*, Y*>> body{
      {{parts.factor}}, {sum}, {parts.x[low], sum}};
  if (parts.head[low] >= 0) {
    map_block<kN>(body, at, parts.head[low], parts.n[low]);
  } else {
    map_block<1>(body, at, 0, parts.n[low]);
  }
}

// ---- conversion: the bits of the scalar functions, those of NaNs too ----

template <class Y, class X>
__device__ __forceinline__ Y converted(X x) {
  if constexpr (std::is_same_v<X, Y>) {
    return x;
  } else {
    float wide = widen(x);
    if constexpr (std::is_same_v<X, float16>) {
      const unsigned bits = x.bits;
      if ((bits & 0x7FFFu) > 0x7C00u) {
        wide = __uint_as_float((bits & 0x8000u) << 16 | 0x7FC00000u | (bits & 0x3FFu) << 13);
      }
    }
    if constexpr (std::is_same_v<Y, float>) {
      return wide;
    } else {
      Y out = narrow<Y>(wide);
      const unsigned bits = __float_as_uint(wide);
      if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
        if constexpr (std::is_same_v<Y, bfloat16>) {
          out.bits = static_cast<uint16_t>(bits >> 16 | 0x40u);
        } else {
          out.bits =
              static_cast<uint16_t>((bits >> 16 & 0x8000u) | 0x7E00u | (bits >> 13 & 0x3FFu));
        }
      }
      return out;
    }
  }
}

template <class Y>
struct Cast {
  template <class X>
  __device__ __forceinline__ Y operator()(X x) const {
    return converted<Y>(x);
  }
};

// Where element `flat` of a strided array lies; Index holds all element numbers.
template <class Index>
__device__ __forceinline__ int64_t offset_of(const Strided& shape, Index flat) {
  int64_t offset = 0;
#pragma unroll
  for (int i = Strided::kMaxDims - 1; i > 0; --i) {
    if (i >= shape.dims) continue;
    const Index size = static_cast<Index>(shape.sizes[i]);
    const Index rest = flat / size;
    offset += static_cast<int64_t>(flat - rest * size) * shape.strides[i];
    flat = rest;
  }
  return offset + static_cast<int64_t>(flat) * shape.strides[0];
}

template <int N, class Index, class X, class Y>
__global__ void __launch_bounds__(kMapThreads)
    cast_strided(const X* x, const __grid_constant__ Strided shape, int64_t packs, Y* y) {
  const int64_t first = int64_t{blockIdx.x} * (kMapPacks * kMapThreads) + threadIdx.x;
  Pack<X, N> in[kMapPacks];
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int64_t pack = first + k * kMapThreads;
    if (pack < packs) {
      in[k] = load_pack<X, N>(x + offset_of(shape, static_cast<Index>(pack * N)));
    }
  }
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int64_t pack = first + k * kMapThreads;
    if (pack >= packs) break;
    Pack<Y, N> out;
    Each<Cast<Y>>()(out, in[k]);
    store_pack(y + pack * N, out);
  }
}

// A plane of the source whose columns lie densely and whose rows do not: `across` of the output's
// innermost dimension, `along` of the one that is dense in the source.
struct Planes {
  int64_t along = 0, across = 0;
  int64_t along_step = 0;                 // in the output
  int64_t across_step = 0;                // in the source
  unsigned wide = 1, high = 1;            // tiles of a plane
  Strided outer;                          // the planes: strides in the source,
  int64_t steps[Strided::kMaxDims] = {};  // and in the output
};

constexpr int kTile = 32;

// Tiles pass through shared memory, so that both sides are accessed densely.
template <class X, class Y>
__global__ void __launch_bounds__(kMapThreads)
    cast_transposed(const X* x, const __grid_constant__ Planes planes, Y* y) {
  __shared__ Y tile[kTile][kTile + 1];
  constexpr int kStep = kMapThreads / kTile;
  const int column = static_cast<int>(threadIdx.x) % kTile,
            row = static_cast<int>(threadIdx.x) / kTile;
  const unsigned per_plane = planes.wide * planes.high, in_plane = blockIdx.x % per_plane;
  int64_t plane = blockIdx.x / per_plane;
#pragma unroll
  for (int i = Strided::kMaxDims - 1; i >= 0; --i) {
    if (i >= planes.outer.dims) continue;
    const int64_t rest = plane / planes.outer.sizes[i], at = plane - rest * planes.outer.sizes[i];
    x += at * planes.outer.strides[i];
    y += at * planes.steps[i];
    plane = rest;
  }
  const int64_t along = int64_t{in_plane % planes.wide} * kTile,
                across = int64_t{in_plane / planes.wide} * kTile;
#pragma unroll
  for (int r = 0; r < kTile; r += kStep) {
    const int64_t a = along + column, b = across + row + r;
    if (a < planes.along && b < planes.across) {
      tile[row + r][column] = converted<Y>(x[a + b * planes.across_step]);
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kTile; r += kStep) {
    const int64_t a = along + row + r, b = across + column;
    if (a < planes.along && b < planes.across) y[a * planes.along_step + b] = tile[column][row + r];
  }
}

// Whether the source has a dense dimension that is not the innermost; its planes if so.
bool transposed_planes(const Strided& shape, Planes& out) {
  const int inner = shape.dims - 1;
  int dense = -1;
  for (int i = 0; i < inner; ++i) {
    if (shape.strides[i] == 1 && shape.sizes[i] >= 8) dense = i;
  }
  if (dense < 0 || shape.strides[inner] == 1 || shape.sizes[inner] < 8) return false;
  out = Planes();
  out.along = shape.sizes[dense];
  out.across = shape.sizes[inner];
  out.across_step = shape.strides[inner];
  int64_t step = 1;
  int64_t steps[Strided::kMaxDims] = {};
  for (int i = inner; i >= 0; --i) {
    steps[i] = step;
    step *= shape.sizes[i];
  }
  out.along_step = steps[dense];
  for (int i = 0; i < inner; ++i) {
    if (i == dense) continue;
    out.outer.sizes[out.outer.dims] = shape.sizes[i];
    out.outer.strides[out.outer.dims] = shape.strides[i];
    out.steps[out.outer.dims++] = steps[i];
  }
  const int64_t wide = (out.along + kTile - 1) / kTile, high = (out.across + kTile - 1) / kTile;
  if (wide * high > INT32_MAX) return false;
  out.wide = static_cast<unsigned>(wide);
  out.high = static_cast<unsigned>(high);
  return true;
}

// Whether rows of the innermost dimension can be read in packs of N.
template <int N, class X, class Y>
bool rows_fit(const X* x, const Strided& shape, const Y* y) {
  const int inner = shape.dims - 1;
  if (shape.strides[inner] != 1) return false;
  bool fits = packs_fit<N>(shape.sizes[inner], x) && packs_fit<N>(shape.sizes[inner], y);
  for (int i = 0; i < inner; ++i) fits = fits && shape.strides[i] % N == 0;
  return fits;
}

template <int N, class X, class Y>
void cast_rows(const X* x, const Strided& shape, Y* y, const GpuStream& on) {
  const int64_t total = shape.elements();
  const Grid grid{map_blocks(total, N), kMapThreads};
  if (total <= INT32_MAX) {
    launch(on, "cast", &cast_strided<N, uint32_t, X, Y>, grid, x, shape, total / N, y);
  } else {
    launch(on, "cast", &cast_strided<N, int64_t, X, Y>, grid, x, shape, total / N, y);
  }
}

}  // namespace

template <class T>
void add(const T* a, const T* b, int64_t n, T* y, const GpuStream& on) {
  map_each<kPack<T>>(on, "add", Each<Sum>(), n, std::tuple(y), std::tuple(a, b));
}

template <class T>
void scale(const T* x, float factor, int64_t n, T* y, const GpuStream& on) {
  map_each<kPack<T>>(on, "scale", Each<Scaled>{{factor}}, n, std::tuple(y), std::tuple(x));
}

template <class T>
void fill(float value, int64_t n, T* y, const GpuStream& on) {
  map_each<kPack<T>>(on, "fill", Each<Constant<T>>{{from_float<T>(value)}}, n, std::tuple(y),
                     std::tuple());
}

template <class X, class Y>
void accumulate(const X* x, float factor, int64_t n, Y* sum, const GpuStream& on) {
  map_each<kBothPack<X, Y>>(on, "accumulate", Each<Accumulated>{{factor}}, n, std::tuple(sum),
                            std::tuple(x, sum));
}

template <class X, class Y>
void accumulate_many(const Accumulation<X, Y>* parts, int64_t count, float factor,
                     const GpuStream& on) {
  Parts<X, Y> batch;
  batch.factor = factor;
  int64_t blocks = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Accumulation<X, Y>& part = parts[i];
    if (part.n > 0) {
      constexpr int kN = kBothPack<X, Y>;
      const int head = pack_head<kN>(part.x, static_cast<const Y*>(part.sum));
      const int at = batch.count++;
      blocks += map_blocks(part.n, head >= 0 ? kN : 1);
      batch.x[at] = part.x;
      batch.sum[at] = part.sum;
      batch.n[at] = part.n;
      batch.end[at] = blocks;
      batch.head[at] = static_cast<int8_t>(head < part.n ? head : part.n);
    }
    if (batch.count == Parts<X, Y>::kMost || (i + 1 == count && batch.count > 0)) {
      launch(on, "accumulate_into", &accumulate_parts<X, Y>, Grid{blocks, kMapThreads}, batch);
      batch.count = 0;
      blocks = 0;
    }
  }
}

template <class X, class Y>
void cast(const X* x, int64_t n, Y* y, const GpuStream& on) {
  map_each<kBothPack<X, Y>>(on, "cast", Each<Cast<Y>>(), n, std::tuple(y), std::tuple(x));
}

template <class X, class Y>
void cast(const X* x, const Strided& given, Y* y, const GpuStream& on) {
  if (given.elements() == 0) return;
  const Strided shape = joined(given);
  constexpr int kN = kBothPack<X, Y>;
  Planes planes;
  if (rows_fit<kN>(x, shape, static_cast<const Y*>(y))) {
    cast_rows<kN>(x, shape, y, on);
  } else if (transposed_planes(shape, planes)) {
    const int64_t blocks = int64_t{planes.wide} * planes.high * planes.outer.elements();
    launch(on, "cast", &cast_transposed<X, Y>, Grid{blocks, kMapThreads}, x, planes, y);
  } else {
    cast_rows<1>(x, shape, y, on);
  }
}

#define DS_ONE_TYPE(T)                                                  \
  template void add(const T*, const T*, int64_t, T*, const GpuStream&); \
  template void scale(const T*, float, int64_t, T*, const GpuStream&);  \
  template void fill(float, int64_t, T*, const GpuStream&);             \
  DS_TWO_TYPES(T, float) DS_TWO_TYPES(T, bfloat16) DS_TWO_TYPES(T, float16)
#define DS_TWO_TYPES(X, Y)                                                                    \
  template void accumulate(const X*, float, int64_t, Y*, const GpuStream&);                   \
  template void accumulate_many(const Accumulation<X, Y>*, int64_t, float, const GpuStream&); \
  template void cast(const X*, int64_t, Y*, const GpuStream&);                                \
  template void cast(const X*, const Strided&, Y*, const GpuStream&);
DS_ONE_TYPE(float)
DS_ONE_TYPE(bfloat16)
DS_ONE_TYPE(float16)
#undef DS_ONE_TYPE
#undef DS_TWO_TYPES

}  // namespace ds::kernels
