// Bias + GELU on a GPU. A thread keeps to its columns, so that the bias is read once and the bias
// gradient is added up in registers; the chunks of rows are those of the CPU.
#include "kernels/activation/bias_gelu.h"

#include <type_traits>

#include "kernels/activation/functions.cuh"
#include "kernels/cuda/map.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

template <int N, class T>
__device__ __forceinline__ Pack<T, N> bias_at(const T* bias, int64_t column) {
  if (bias != nullptr) return load_pack<T, N>(bias + column);
  Pack<T, N> zero;
#pragma unroll
  for (int i = 0; i < N; ++i) zero.at[i] = T{};
  return zero;
}

template <class Form, class T>
struct ForwardBody {
  const T *x, *bias;
  int64_t columns;
  T* y;
  template <int N>
  using Input = Pack<T, N>;
  template <int N>
  __device__ __forceinline__ Pack<T, N> column(int64_t column) const {
    return bias_at<N>(bias, column);
  }
  template <int N>
  __device__ __forceinline__ Input<N> load(int64_t row, int64_t column) const {
    return load_pack<T, N>(x + row * columns + column);
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t row, int64_t column, const Pack<T, N>& of_column,
                                        const Input<N>& in) const {
    float v[N], b[N];
    widen_pack(in, v);
    widen_pack(of_column, b);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = Form::value(v[i] + b[i]);
    store_pack(y + row * columns + column, narrow_pack<T, N>(v));
  }
};

template <class T>
struct Backward {
  const T *dy, *x, *bias;
  int64_t columns;
  T* dx;
};

// dx of one pack, also as fp32.
template <class Form, int N, class T>
__device__ __forceinline__ void gradient(const Backward<T>& call, int64_t at, const Pack<T, N>& dy,
                                         const Pack<T, N>& x, const Pack<T, N>& bias, float* g) {
  float v[N], b[N];
  widen_pack(dy, g);
  widen_pack(x, v);
  widen_pack(bias, b);
#pragma unroll
  for (int i = 0; i < N; ++i) g[i] *= Form::both(v[i] + b[i]).slope;
  store_pack(call.dx + at, narrow_pack<T, N>(g));
}

template <class Form, class T>
struct BackwardBody {
  Backward<T> call;
  template <int N>
  struct Input {
    Pack<T, N> dy, x;
  };
  template <int N>
  __device__ __forceinline__ Pack<T, N> column(int64_t column) const {
    return bias_at<N>(call.bias, column);
  }
  template <int N>
  __device__ __forceinline__ Input<N> load(int64_t row, int64_t column) const {
    const int64_t at = row * call.columns + column;
    return {load_pack<T, N>(call.dy + at), load_pack<T, N>(call.x + at)};
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t row, int64_t column, const Pack<T, N>& of_column,
                                        const Input<N>& in) const {
    float g[N];
    gradient<Form, N>(call, row * call.columns + column, in.dy, in.x, of_column, g);
  }
};

// A block has the columns of its tile in one chunk of rows: blockIdx.y.
template <class Form, int N, class T>
__global__ void __launch_bounds__(kMapThreads)
    backward_chunks(BackwardBody<Form, T> body, RowTiles tiles, int64_t chunk_rows,
                    float* partials) {
  __shared__ float shared[kMapThreads * N];
  const int lanes = 1 << tiles.lane_bits, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int step = kMapThreads >> tiles.lane_bits,
            lane_row = static_cast<int>(threadIdx.x) >> tiles.lane_bits;
  const int64_t column = (int64_t{blockIdx.x} * lanes + lane) * N;
  const int64_t begin = int64_t{blockIdx.y} * chunk_rows;
  const int64_t end = begin + chunk_rows < tiles.rows ? begin + chunk_rows : tiles.rows;
  float sums[N] = {};
  if (column < tiles.cols) {
    const Pack<T, N> bias = body.template column<N>(column);
    using Input = typename BackwardBody<Form, T>::template Input<N>;
    for (int64_t first = begin + lane_row; first < end; first += kMapRows * step) {
      Input in[kMapRows];
#pragma unroll
      for (int k = 0; k < kMapRows; ++k) {
        const int64_t row = first + k * step;
        if (row < end) in[k] = body.template load<N>(row, column);
      }
#pragma unroll
      for (int k = 0; k < kMapRows; ++k) {
        const int64_t row = first + k * step;
        if (row >= end) continue;
        float g[N];
        gradient<Form, N>(body.call, row * tiles.cols + column, in[k].dy, in[k].x, bias, g);
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] += g[i];
      }
    }
  }
  // Neighbouring threads write neighbouring words.
#pragma unroll
  for (int i = 0; i < N; ++i) shared[i * kMapThreads + threadIdx.x] = sums[i];
  __syncthreads();
  if (lane_row != 0 || column >= tiles.cols) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float total = sums[i];
    for (int r = 1; r < step; ++r) total += shared[i * kMapThreads + r * lanes + lane];
    partials[int64_t{blockIdx.y} * tiles.cols + column + i] = total;
  }
}

__global__ void add_chunks(const float* partials, int64_t chunks, int64_t columns, float* db) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float total = 0;
#pragma unroll 8
  for (int64_t chunk = 0; chunk < chunks; ++chunk) total += partials[chunk * columns + column];
  db[column] += total;
}

// Calls kernels(form, pack size).
template <class T, class Kernels>
void choose(GeluForm form, bool fits, const Kernels& kernels) {
  const auto with_form = [&](auto f) {
    if (fits) {
      kernels(f, std::integral_constant<int, kPack<T>>());
    } else {
      kernels(f, std::integral_constant<int, 1>());
    }
  };
  if (form == GeluForm::kTanh) {
    with_form(GeluTanh());
  } else {
    with_form(GeluErf());
  }
}

}  // namespace

template <class T>
void bias_gelu(const BiasGelu<T>& call, const GpuStream& on) {
  const bool fits =
      packs_fit<kPack<T>>(call.columns, call.x, call.bias, static_cast<const T*>(call.y));
  choose<T>(call.form, fits, [&](auto f, auto pack) {
    map_rows<decltype(pack)::value>(
        on, "bias_gelu", ForwardBody<decltype(f), T>{call.x, call.bias, call.columns, call.y},
        call.rows, call.columns);
  });
}

template <class T>
void bias_gelu_backward(const BiasGeluBackward<T>& call, const GpuStream& on) {
  const int64_t rows = call.rows, columns = call.columns;
  if (rows <= 0 || columns <= 0) return;
  const char* const name = "bias_gelu_backward";
  const bool fits =
      packs_fit<kPack<T>>(columns, call.dy, call.x, call.bias, static_cast<const T*>(call.dx));
  choose<T>(call.form, fits, [&](auto f, auto pack) {
    using Form = decltype(f);
    constexpr int kN = decltype(pack)::value;
    const BackwardBody<Form, T> body{{call.dy, call.x, call.bias, columns, call.dx}};
    if (call.db == nullptr) {
      map_rows<kN>(on, name, body, rows, columns);
      return;
    }
    const int64_t chunks = bias_gelu_chunks(rows, columns), size = (rows + chunks - 1) / chunks;
    const RowTiles tiles = row_tiles(rows, columns, kN);
    launch(on, name, &backward_chunks<Form, kN, T>, Grid{tiles.wide, kMapThreads, 0, chunks}, body,
           tiles, size, call.partials);
    launch(on, name, &add_chunks, Grid{(columns + 127) / 128, 128},
           static_cast<const float*>(call.partials), chunks, columns, call.db);
  });
}

#define DS_ONE_TYPE(T)                                           \
  template void bias_gelu(const BiasGelu<T>&, const GpuStream&); \
  template void bias_gelu_backward(const BiasGeluBackward<T>&, const GpuStream&);
DS_ONE_TYPE(float)
DS_ONE_TYPE(bfloat16)
DS_ONE_TYPE(float16)
#undef DS_ONE_TYPE

}  // namespace ds::kernels
