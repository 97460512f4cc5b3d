// Loops of device code over arrays and over matrices: every thread reads several packs, and only
// then works on them and writes, so that many loads are in flight.
#pragma once

#include <tuple>

#include "kernels/cuda/device.cuh"

namespace ds::kernels::cuda {

inline constexpr int kMapThreads = 256;
// Packs of a thread.
inline constexpr int kMapPacks = 2;
inline constexpr int kMapRows = 4;

// ---- packs as fp32 ----

template <class T, int N>
__device__ __forceinline__ void widen_pack(const Pack<T, N>& pack, float* to) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = widen(pack.at[i]);
}
template <class T, int N>
__device__ __forceinline__ Pack<T, N> narrow_pack(const float* from) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.at[i] = narrow<T>(from[i]);
  return pack;
}

// ---- arrays ----

// Elements before the first place at which packs of N are aligned in all arrays; -1 if there is no
// such place.
template <int N, class... T>
int pack_head(const T*... arrays) {
  for (int head = 0; head < N; ++head) {
    if ((((reinterpret_cast<uintptr_t>(arrays) + static_cast<size_t>(head) * sizeof(T)) %
              alignof(Pack<T, N>) ==
          0) &&
         ...)) {
      return head;
    }
  }
  return -1;
}

inline int64_t map_blocks(int64_t n, int pack) {
  const int64_t each = int64_t{pack} * kMapPacks * kMapThreads;
  return (n + each - 1) / each;
}

// Block `block` of a loop over n elements: body.load<N>(at) gives what store<N>(at, input) takes.
// Packs begin at `head`; the first block also does what does not fill a pack.
template <int N, class Body>
__device__ __forceinline__ void map_block(const Body& body, int64_t block, int64_t head,
                                          int64_t n) {
  const int64_t packs = (n - head) / N;
  const int64_t first = block * (kMapPacks * kMapThreads) + threadIdx.x;
  typename Body::template Input<N> in[kMapPacks];
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int64_t pack = first + k * kMapThreads;
    if (pack < packs) in[k] = body.template load<N>(head + pack * N);
  }
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int64_t pack = first + k * kMapThreads;
    if (pack < packs) body.template store<N>(head + pack * N, in[k]);
  }
  if constexpr (N > 1) {
    if (block == 0 && threadIdx.x < n - packs * N) {
      const int64_t i = threadIdx.x, at = i < head ? i : i + packs * N;
      body.template store<1>(at, body.template load<1>(at));
    }
  }
}

template <int N, class Body>
__global__ void __launch_bounds__(kMapThreads) map_kernel(Body body, int64_t head, int64_t n) {
  map_block<N>(body, blockIdx.x, head, n);
}

// Runs a body over n elements; `arrays` are all that it reads and writes at its place.
template <int N, class Body, class... T>
void map(const GpuStream& on, const char* name, const Body& body, int64_t n, const T*... arrays) {
  if (n <= 0) return;
  const int head = pack_head<N>(arrays...);
  if (head >= 0) {
    launch(on, name, &map_kernel<N, Body>, Grid{map_blocks(n, N), kMapThreads}, body,
           head < n ? int64_t{head} : n, n);
  } else {
    launch(on, name, &map_kernel<1, Body>, Grid{map_blocks(n, 1), kMapThreads}, body, int64_t{0},
           n);
  }
}

// ---- matrices ----

// How blocks cover a matrix: a thread has the same columns of several rows.
struct RowTiles {
  int64_t rows = 0, cols = 0;
  int lane_bits = 0;  // 2^lane_bits threads lie side by side
  unsigned wide = 1;  // blocks side by side

  int lanes() const { return 1 << lane_bits; }
};

inline RowTiles row_tiles(int64_t rows, int64_t cols, int pack) {
  RowTiles out{rows, cols};
  const int64_t packs = (cols + pack - 1) / pack;
  while (out.lane_bits < 5 && out.lanes() < packs) ++out.lane_bits;
  out.wide = static_cast<unsigned>((packs + out.lanes() - 1) / out.lanes());
  return out;
}

// body.column<N>(column) is made once, load<N>(row, column) for every row, and store<N>(row,
// column, both) then.
template <int N, class Body>
__global__ void __launch_bounds__(kMapThreads) map_rows_kernel(Body body, RowTiles tiles) {
  const unsigned lane = threadIdx.x & ((1u << tiles.lane_bits) - 1u);
  const int64_t column = ((int64_t{blockIdx.x % tiles.wide} << tiles.lane_bits) + lane) * N;
  if (column >= tiles.cols) return;
  const int step = kMapThreads >> tiles.lane_bits;
  const int64_t first =
      int64_t{blockIdx.x / tiles.wide} * (kMapRows * step) + (threadIdx.x >> tiles.lane_bits);
  const auto of_column = body.template column<N>(column);
  typename Body::template Input<N> in[kMapRows];
#pragma unroll
  for (int k = 0; k < kMapRows; ++k) {
    const int64_t row = first + k * step;
    if (row < tiles.rows) in[k] = body.template load<N>(row, column);
  }
#pragma unroll
  for (int k = 0; k < kMapRows; ++k) {
    const int64_t row = first + k * step;
    if (row < tiles.rows) body.template store<N>(row, column, of_column, in[k]);
  }
}

// N divides cols, and all rows are aligned for packs of N.
template <int N, class Body>
void map_rows(const GpuStream& on, const char* name, const Body& body, int64_t rows, int64_t cols) {
  if (rows <= 0 || cols <= 0) return;
  const RowTiles tiles = row_tiles(rows, cols, N);
  const int64_t each = int64_t{kMapRows} * (kMapThreads >> tiles.lane_bits);
  launch(on, name, &map_rows_kernel<N, Body>,
         Grid{(rows + each - 1) / each * tiles.wide, kMapThreads}, body, tiles);
}

// ---- functions of elements ----

// A matrix whose dense rows lie `stride` elements apart.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
};

template <class T>
__device__ __forceinline__ T* address(T* array, int64_t at) {
  return array + at;
}
template <class T>
__device__ __forceinline__ T* address(const Rows<T>& m, int64_t row, int64_t column) {
  return m.data + row * m.stride + column;
}

// A body of the loops above: function(to..., from...) makes packs from packs. To and From are
// tuples of arrays (T*) or of Rows; what is read may be written too.
template <class Function, class To, class From>
struct EachBody;
template <class Function, class... Y, class... X>
struct EachBody<Function, std::tuple<Y...>, std::tuple<X...>> {
  // Element types.
  template <class T>
  static T element(T*);
  template <class T>
  static T element(const T*);
  template <class T>
  static T element(Rows<T>);
  template <class T>
  static T element(Rows<const T>);
  template <class A, int N>
  using PackOf = Pack<decltype(element(std::declval<A>())), N>;

  Function function;
  std::tuple<Y...> to;
  std::tuple<X...> from;

  template <int N>
  using Input = std::tuple<PackOf<X, N>...>;
  template <int N>
  __device__ __forceinline__ int column(int64_t) const {
    return 0;
  }
  template <int N, class... Place>
  __device__ __forceinline__ Input<N> load(Place... place) const {
    return read<N>(std::index_sequence_for<X...>(), place...);
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t at, const Input<N>& in) const {
    write<N>(in, std::index_sequence_for<Y...>(), std::index_sequence_for<X...>(), at);
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t row, int64_t column, int,
                                        const Input<N>& in) const {
    write<N>(in, std::index_sequence_for<Y...>(), std::index_sequence_for<X...>(), row, column);
  }

 private:
  template <int N, size_t... I, class... Place>
  __device__ __forceinline__ Input<N> read(std::index_sequence<I...>, Place... place) const {
    return Input<N>(
        load_pack<typename PackOf<X, N>::Element, N>(address(std::get<I>(from), place...))...);
  }
  template <int N, size_t... I, size_t... J, class... Place>
  __device__ __forceinline__ void write(const Input<N>& in, std::index_sequence<I...>,
                                        std::index_sequence<J...>, Place... place) const {
    std::tuple<PackOf<Y, N>...> out;
    function(std::get<I>(out)..., std::get<J>(in)...);
    (store_pack(address(std::get<I>(to), place...), std::get<I>(out)), ...);
  }
};

// A function of single elements: y = function(x...).
template <class Function>
struct Each {
  Function function;
  template <class Y, int N, class... X>
  __device__ __forceinline__ void operator()(Pack<Y, N>& y, const Pack<X, N>&... x) const {
#pragma unroll
    for (int i = 0; i < N; ++i) y.at[i] = function(x.at[i]...);
  }
};

// Runs a function of packs of up to N elements over arrays.
template <int N, class Function, class... Y, class... X>
void map_each(const GpuStream& on, const char* name, const Function& function, int64_t n,
              const std::tuple<Y*...>& to, const std::tuple<X*...>& from) {
  const EachBody<Function, std::tuple<Y*...>, std::tuple<X*...>> body{function, to, from};
  std::apply([&](const auto*... arrays) { map<N>(on, name, body, n, arrays...); },
             std::tuple_cat(to, from));
}

// And over matrices.
template <int N, class Function, class... Y, class... X>
void map_each_row(const GpuStream& on, const char* name, const Function& function, int64_t rows,
                  int64_t cols, const std::tuple<Rows<Y>...>& to,
                  const std::tuple<Rows<X>...>& from) {
  const EachBody<Function, std::tuple<Rows<Y>...>, std::tuple<Rows<X>...>> body{function, to, from};
  const bool fits = std::apply(
      [&](const auto&... m) {
        return ((cols % N == 0 && m.stride % N == 0) && ...) && packs_fit<N>(0, m.data...);
      },
      std::tuple_cat(to, from));
  if (fits) {
    map_rows<N>(on, name, body, rows, cols);
  } else {
    map_rows<1>(on, name, body, rows, cols);
  }
}

}  // namespace ds::kernels::cuda
