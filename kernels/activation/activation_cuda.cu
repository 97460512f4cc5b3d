// Activations on a GPU, plain and gated. The function is chosen inside the kernel, once per pack.
#include "kernels/activation/activation.h"

#include "kernels/activation/functions.cuh"
#include "kernels/cuda/map.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

template <class T>
struct ValueBody {
  ActivationKind kind;
  const T* x;
  T* y;
  template <int N>
  using Input = Pack<T, N>;
  template <int N>
  __device__ __forceinline__ Input<N> load(int64_t at) const {
    return load_pack<T, N>(x + at);
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t at, const Input<N>& in) const {
    float v[N];
    widen_pack(in, v);
    with_function(kind, [&](auto f) {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = f.value(v[i]);
    });
    store_pack(y + at, narrow_pack<T, N>(v));
  }
};

template <class T>
struct SlopeBody {
  ActivationKind kind;
  const T *dy, *x;
  T* dx;
  template <int N>
  struct Input {
    Pack<T, N> dy, x;
  };
  template <int N>
  __device__ __forceinline__ Input<N> load(int64_t at) const {
    return {load_pack<T, N>(dy + at), load_pack<T, N>(x + at)};
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t at, const Input<N>& in) const {
    float g[N], v[N];
    widen_pack(in.dy, g);
    widen_pack(in.x, v);
    with_function(kind, [&](auto f) {
#pragma unroll
      for (int i = 0; i < N; ++i) g[i] *= f.both(v[i]).slope;
    });
    store_pack(dx + at, narrow_pack<T, N>(g));
  }
};

// What loops over rows ask for; these bodies have nothing that belongs to a column.
struct NoColumn {
  template <int N>
  __device__ __forceinline__ int column(int64_t) const {
    return 0;
  }
};

template <class T>
__device__ __forceinline__ T* at(const StridedRows<T>& m, int64_t row, int64_t column) {
  return m.data + row * m.stride + column;
}

template <class T>
struct GatedBody : NoColumn {
  GatedActivation<T> call;
  template <int N>
  struct Input {
    Pack<T, N> gate, up;
  };
  template <int N>
  __device__ __forceinline__ Input<N> load(int64_t row, int64_t column) const {
    return {load_pack<T, N>(at(call.gate, row, column)), load_pack<T, N>(at(call.up, row, column))};
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t row, int64_t column, int,
                                        const Input<N>& in) const {
    float v[N], u[N];
    widen_pack(in.gate, v);
    widen_pack(in.up, u);
    with_function(call.kind, [&](auto f) {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = f.value(v[i]) * u[i];
    });
    store_pack(at(call.y, row, column), narrow_pack<T, N>(v));
  }
};

template <class T>
struct GatedBackwardBody : NoColumn {
  GatedActivationBackward<T> call;
  template <int N>
  struct Input {
    Pack<T, N> dy, gate, up;
  };
  template <int N>
  __device__ __forceinline__ Input<N> load(int64_t row, int64_t column) const {
    return {load_pack<T, N>(at(call.dy, row, column)), load_pack<T, N>(at(call.gate, row, column)),
            load_pack<T, N>(at(call.up, row, column))};
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t row, int64_t column, int,
                                        const Input<N>& in) const {
    float g[N], v[N], u[N];
    widen_pack(in.dy, g);
    widen_pack(in.gate, v);
    widen_pack(in.up, u);
    with_function(call.kind, [&](auto f) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const ValueAndSlope both = f.both(v[i]);
        v[i] = g[i] * u[i] * both.slope;
        u[i] = g[i] * both.value;
      }
    });
    store_pack(at(call.dgate, row, column), narrow_pack<T, N>(v));
    store_pack(at(call.dup, row, column), narrow_pack<T, N>(u));
  }
};

// Whether packs of N can be had of all rows.
template <int N, class... T>
bool rows_fit(int64_t cols, const StridedRows<T>&... m) {
  return cols % N == 0 && ((m.stride % N == 0) && ...) &&
         packs_fit<N>(0, static_cast<const T*>(m.data)...);
}

template <class T, class Body>
void map_rows_of(const GpuStream& on, const char* name, bool fits, const Body& body, int64_t rows,
                 int64_t cols) {
  if (fits) {
    map_rows<kPack<T>>(on, name, body, rows, cols);
  } else {
    map_rows<1>(on, name, body, rows, cols);
  }
}

}  // namespace

template <class T>
void activation(const T* x, ActivationKind kind, int64_t n, T* y, const GpuStream& on) {
  map<kPack<T>>(on, "activation", ValueBody<T>{kind, x, y}, n, x, static_cast<const T*>(y));
}

template <class T>
void activation_backward(const T* dy, const T* x, ActivationKind kind, int64_t n, T* dx,
                         const GpuStream& on) {
  map<kPack<T>>(on, "activation_backward", SlopeBody<T>{kind, dy, x, dx}, n, dy, x,
                static_cast<const T*>(dx));
}

template <class T>
void gated_activation(const GatedActivation<T>& call, const GpuStream& on) {
  const bool fits = rows_fit<kPack<T>>(call.cols, call.gate, call.up, call.y);
  map_rows_of<T>(on, "gated_activation", fits, GatedBody<T>{{}, call}, call.rows, call.cols);
}

template <class T>
void gated_activation_backward(const GatedActivationBackward<T>& call, const GpuStream& on) {
  const bool fits =
      rows_fit<kPack<T>>(call.cols, call.dy, call.gate, call.up, call.dgate, call.dup);
  map_rows_of<T>(on, "gated_activation_backward", fits, GatedBackwardBody<T>{{}, call}, call.rows,
                 call.cols);
}

#define DS_ONE_TYPE(T)                                                               \
  template void activation(const T*, ActivationKind, int64_t, T*, const GpuStream&); \
  template void activation_backward(const T*, const T*, ActivationKind, int64_t, T*, \
                                    const GpuStream&);                               \
  template void gated_activation(const GatedActivation<T>&, const GpuStream&);       \
  template void gated_activation_backward(const GatedActivationBackward<T>&, const GpuStream&);
DS_ONE_TYPE(float)
DS_ONE_TYPE(bfloat16)
DS_ONE_TYPE(float16)
#undef DS_ONE_TYPE

}  // namespace ds::kernels
