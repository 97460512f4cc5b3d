// The reductions on a GPU. Flat arrays are cut into the chunks of the CPU, whose results one block
// combines in a fixed order; squares are summed in the order that reduce.h tells and then as
// integers, and columns as on the CPU: the same bits.
#include <cstdint>
#include <limits>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/exact_sum.cuh"
#include "kernels/reduce/reduce.h"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 512;
constexpr int kFinishThreads = 1024;

// ---- what is reduced: an accumulator, how elements and others enter it, what is told of it ----

template <bool kSquares>
struct Total {
  using Acc = double;
  using Result = double;
  static __device__ __forceinline__ Acc start() { return 0; }
  static __device__ __forceinline__ void add(Acc& acc, float value, int64_t) {
    const double wide = value;
    acc += kSquares ? wide * wide : wide;
  }
  static __device__ __forceinline__ Acc merge(Acc a, Acc b) { return a + b; }
  static __device__ __forceinline__ Result finish(Acc acc) { return acc; }
};

// Bits of magnitudes: as integers they order like these, with NaN above infinity.
constexpr unsigned kLargestFinite = 0x7F7FFFFF, kInfinity = 0x7F800000;
__device__ __forceinline__ unsigned magnitude_bits(float value) {
  return __float_as_uint(value) & 0x7FFFFFFFu;
}

struct Largest {
  using Acc = unsigned;
  using Result = double;
  static __device__ __forceinline__ Acc start() { return 0; }
  static __device__ __forceinline__ void add(Acc& acc, float value, int64_t) {
    acc = merge(acc, magnitude_bits(value));
  }
  static __device__ __forceinline__ Acc merge(Acc a, Acc b) { return a < b ? b : a; }
  static __device__ __forceinline__ Result finish(Acc acc) {
    return acc > kInfinity ? std::numeric_limits<double>::quiet_NaN() : __uint_as_float(acc);
  }
};

struct FirstBad {
  using Acc = int64_t;
  using Result = int64_t;
  static constexpr int64_t kNone = INT64_MAX;
  static __device__ __forceinline__ Acc start() { return kNone; }
  static __device__ __forceinline__ void add(Acc& acc, float value, int64_t index) {
    if (magnitude_bits(value) > kLargestFinite && index < acc) acc = index;
  }
  static __device__ __forceinline__ Acc merge(Acc a, Acc b) { return a < b ? a : b; }
  static __device__ __forceinline__ Result finish(Acc acc) { return acc == kNone ? -1 : acc; }
};

// What all threads of a block have, in thread 0.
template <class R>
__device__ __forceinline__ typename R::Acc merge_block(typename R::Acc acc) {
  __shared__ typename R::Acc of_warps[kFinishThreads / kWarp];
  acc = warp_combine(acc, [](typename R::Acc a, typename R::Acc b) { return R::merge(a, b); });
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = acc;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < static_cast<int>(blockDim.x) / kWarp; ++i) {
      acc = R::merge(acc, of_warps[i]);
    }
  }
  return acc;
}

template <class R, class T, int N>
__global__ void __launch_bounds__(kThreads)
    reduce_chunk(const T* x, int64_t n, typename R::Acc* partials) {
  const int64_t begin = blockIdx.x * kReduceGrain;
  const int64_t end = begin + kReduceGrain < n ? begin + kReduceGrain : n;
  constexpr int64_t kStep = int64_t{N} * kThreads;
  constexpr int kAtOnce = N == 1 ? 8 : 4;
  typename R::Acc acc = R::start();
  int64_t i = begin + int64_t{N} * threadIdx.x;
  for (; i + (kAtOnce - 1) * kStep + N <= end; i += kAtOnce * kStep) {
    Pack<T, N> packs[kAtOnce];
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p) packs[p] = load_pack<T, N>(x + i + p * kStep);
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p) {
#pragma unroll
      for (int e = 0; e < N; ++e) R::add(acc, widen(packs[p].at[e]), i + p * kStep + e);
    }
  }
  for (; i < end; i += kStep) {
    for (int e = 0; e < N && i + e < end; ++e) R::add(acc, widen(x[i + e]), i + e);
  }
  acc = merge_block<R>(acc);
  if (threadIdx.x == 0) partials[blockIdx.x] = acc;
}

template <class R>
__global__ void __launch_bounds__(kFinishThreads)
    finish_chunks(const typename R::Acc* partials, int64_t chunks, typename R::Result* out) {
  typename R::Acc acc = R::start();
  for (int64_t i = threadIdx.x; i < chunks; i += kFinishThreads) acc = R::merge(acc, partials[i]);
  acc = merge_block<R>(acc);
  if (threadIdx.x == 0) *out = R::finish(acc);
}

template <class R, class T>
void reduce(const char* name, const T* x, int64_t n, typename R::Acc* partials,
            typename R::Result* out, const GpuStream& on) {
  const int64_t chunks = reduce_chunks(n);
  const Grid grid{chunks, kThreads};
  if (packs_fit<kPack<T>>(0, x)) {
    launch(on, name, &reduce_chunk<R, T, kPack<T>>, grid, x, n, partials);
  } else {
    launch(on, name, &reduce_chunk<R, T, 1>, grid, x, n, partials);
  }
  launch(on, name, &finish_chunks<R>, {1, kFinishThreads}, partials, chunks, out);
}

// ---- exact sums of squares ----

constexpr int kExactWarps = 8;
constexpr int64_t kTile = kWarp * kExactBlock;  // elements that a warp takes at a time
constexpr int kWords = ExactSum::kWords;

// Sixteen bytes that a block of kExactBlock elements takes in shared memory: one more than it
// fills, so that the lanes of a warp read different banks.
template <class T>
constexpr int kBlockPitch = static_cast<int>(kExactBlock * sizeof(T) / 16) + 1;

// The sum of squares of a block, in the order that reduce.h tells.
template <class T>
__device__ __forceinline__ double block_squares(const T* x) {
  double a[8];
#pragma unroll
  for (int half = 0; half < 8; half += 4) {
    Pack<T, 4> p[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) p[k] = load_pack<T, 4>(x + 8 * k + half);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      double squares[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const double wide = widen(p[k].at[i]);
        squares[k] = wide * wide;
      }
      a[half + i] = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    }
  }
  return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

// A warp brings 32 blocks to shared memory, each lane then has one.
template <class T, int N>
__global__ void __launch_bounds__(kExactWarps* kWarp)
    exact_words(const T* x, int64_t n, int64_t* partials) {
  __shared__ uint4 tiles[kExactWarps][kWarp * kBlockPitch<T>];
  __shared__ unsigned long long words[kWords];
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  if (threadIdx.x < kWords) words[threadIdx.x] = 0;
  __syncthreads();
  ExactWindow window;
  const auto row = [&](int block) {
    return reinterpret_cast<T*>(&tiles[warp][block * kBlockPitch<T>]);
  };
  const int64_t step = int64_t{gridDim.x} * kExactWarps * kTile;
  for (int64_t at = (int64_t{blockIdx.x} * kExactWarps + warp) * kTile; at < n; at += step) {
    constexpr int kSlots = static_cast<int>(kExactBlock) / N;
    Pack<T, N> packs[kSlots];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const int64_t i = at + (s * kWarp + lane) * N;
      if (i + N <= n) {
        packs[s] = load_pack<T, N>(x + i);
      } else {
#pragma unroll
        for (int e = 0; e < N; ++e) packs[s].at[e] = i + e < n ? x[i + e] : T{};
      }
    }
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const int e = (s * kWarp + lane) * N;
      store_pack<T, N>(row(e / static_cast<int>(kExactBlock)) + e % kExactBlock, packs[s]);
    }
    __syncwarp();
    window.add(block_squares(row(lane)), words);
    __syncwarp();
  }
  window.flush(words);
  __syncthreads();
  if (threadIdx.x < kWords) {
    partials[int64_t{blockIdx.x} * kWords + threadIdx.x] = static_cast<int64_t>(words[threadIdx.x]);
  }
}

// A warp per word; then the carries, which make the words those of the CPU.
__global__ void __launch_bounds__(kWords* kWarp)
    finish_words(const int64_t* partials, int64_t count, int64_t* out) {
  __shared__ int64_t words[kWords];
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  int64_t word = 0;
  for (int64_t i = lane; i < count; i += kWarp) word += partials[i * kWords + warp];
  word = warp_sum(word);
  if (lane == 0) words[warp] = word;
  __syncthreads();
  if (threadIdx.x != 0) return;
  write_carried(words, out);
}

// ---- column sums ----

constexpr int kColumnThreads = 64;

// A chunk of rows' own sums of N neighbouring columns per thread, eight rows at a time: the order
// of the CPU.
template <class T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    column_sums(const T* x, int64_t rows, int64_t cols, int64_t stride, int64_t chunk_rows,
                float* partials) {
  const int64_t column = (int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * N;
  if (column >= cols) return;
  const int64_t chunk = blockIdx.y, begin = chunk * chunk_rows;
  const int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  const T* from = x + begin * stride + column;
  float sums[N] = {};
  int64_t row = begin;
  for (; row + 8 <= end; row += 8, from += 8 * stride) {
    Pack<T, N> r[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) r[k] = load_pack<T, N>(from + k * stride);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float v[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) v[k] = widen(r[k].at[i]);
      sums[i] += ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
  }
  for (; row < end; ++row, from += stride) {
    const Pack<T, N> r = load_pack<T, N>(from);
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] += widen(r.at[i]);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) partials[chunk * cols + column + i] = sums[i];
}

__global__ void add_chunks(const float* partials, int64_t chunks, int64_t cols, float* y) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= cols) return;
  float sum = partials[column];
#pragma unroll 8
  for (int64_t chunk = 1; chunk < chunks; ++chunk) sum += partials[chunk * cols + column];
  y[column] += sum;
}

}  // namespace

template <class T>
void sum(const T* x, int64_t n, double* partials, double* out, const GpuStream& on) {
  reduce<Total<false>>("sum", x, n, partials, out, on);
}
template <class T>
void sum_squares(const T* x, int64_t n, double* partials, double* out, const GpuStream& on) {
  reduce<Total<true>>("sum_squares", x, n, partials, out, on);
}
template <class T>
void max_abs(const T* x, int64_t n, double* partials, double* out, const GpuStream& on) {
  reduce<Largest>("max_abs", x, n, reinterpret_cast<unsigned*>(partials), out, on);
}
template <class T>
void first_non_finite(const T* x, int64_t n, int64_t* partials, int64_t* out, const GpuStream& on) {
  reduce<FirstBad>("first_non_finite", x, n, partials, out, on);
}
template <class T>
void exact_squares(const T* x, int64_t n, int64_t* partials, int64_t* out, const GpuStream& on) {
  const int64_t most = int64_t{6} * on.processors, chunks = reduce_chunks(n);
  const Grid grid{chunks < most ? chunks : most, kExactWarps * kWarp};
  if (packs_fit<kPack<T>>(0, x)) {
    launch(on, "exact_squares", &exact_words<T, kPack<T>>, grid, x, n, partials);
  } else {
    launch(on, "exact_squares", &exact_words<T, 1>, grid, x, n, partials);
  }
  launch(on, "exact_squares", &finish_words, {1, kWords * kWarp}, partials, grid.blocks, out);
}

template <class T>
void add_column_sums(const T* x, int64_t rows, int64_t cols, int64_t stride, float* y,
                     float* partials, const GpuStream& on) {
  if (rows <= 0 || cols <= 0) return;
  const int64_t chunk_rows = row_chunk_size(rows), chunks = row_chunks(rows);
  const auto sums = [&](auto pack) {
    constexpr int kN = decltype(pack)::value;
    const int64_t tile = kColumnThreads * kN;
    launch(on, "add_column_sums", &column_sums<T, kN>,
           {(cols + tile - 1) / tile, kColumnThreads, 0, chunks}, x, rows, cols, stride, chunk_rows,
           partials);
  };
  if (cols % kPack<T> == 0 && packs_fit<kPack<T>>(stride, x)) {
    sums(std::integral_constant<int, kPack<T>>());
  } else {
    sums(std::integral_constant<int, 1>());
  }
  add_partial_sums(partials, chunks, cols, y, on);
}

void add_partial_sums(const float* partials, int64_t chunks, int64_t cols, float* y,
                      const GpuStream& on) {
  if (chunks <= 0 || cols <= 0) return;
  launch(on, "add_partial_sums", &add_chunks, {(cols + 127) / 128, 128}, partials, chunks, cols, y);
}

template void sum(const float*, int64_t, double*, double*, const GpuStream&);
template void sum_squares(const float*, int64_t, double*, double*, const GpuStream&);
template void max_abs(const float*, int64_t, double*, double*, const GpuStream&);
template void first_non_finite(const float*, int64_t, int64_t*, int64_t*, const GpuStream&);
template void exact_squares(const float*, int64_t, int64_t*, int64_t*, const GpuStream&);
template void add_column_sums(const float*, int64_t, int64_t, int64_t, float*, float*,
                              const GpuStream&);
template void sum(const bfloat16*, int64_t, double*, double*, const GpuStream&);
template void sum_squares(const bfloat16*, int64_t, double*, double*, const GpuStream&);
template void max_abs(const bfloat16*, int64_t, double*, double*, const GpuStream&);
template void first_non_finite(const bfloat16*, int64_t, int64_t*, int64_t*, const GpuStream&);
template void exact_squares(const bfloat16*, int64_t, int64_t*, int64_t*, const GpuStream&);
template void add_column_sums(const bfloat16*, int64_t, int64_t, int64_t, float*, float*,
                              const GpuStream&);
template void sum(const float16*, int64_t, double*, double*, const GpuStream&);
template void sum_squares(const float16*, int64_t, double*, double*, const GpuStream&);
template void max_abs(const float16*, int64_t, double*, double*, const GpuStream&);
template void first_non_finite(const float16*, int64_t, int64_t*, int64_t*, const GpuStream&);
template void exact_squares(const float16*, int64_t, int64_t*, int64_t*, const GpuStream&);
template void add_column_sums(const float16*, int64_t, int64_t, int64_t, float*, float*,
                              const GpuStream&);

}  // namespace ds::kernels
