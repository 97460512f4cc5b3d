// Activations on a GPU, plain and gated. The function is chosen inside the kernel, once per pack.
#include "kernels/activation/activation.h"

#include "kernels/activation/functions.cuh"
#include "kernels/cuda/map.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

struct Value {
  ActivationKind kind;
  template <class T, int N>
  __device__ __forceinline__ void operator()(Pack<T, N>& y, const Pack<T, N>& x) const {
    float v[N];
    widen_pack(x, v);
    with_function(kind, [&](auto f) {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = f.value(v[i]);
    });
    y = narrow_pack<T, N>(v);
  }
};

struct Slope {
  ActivationKind kind;
  template <class T, int N>
  __device__ __forceinline__ void operator()(Pack<T, N>& dx, const Pack<T, N>& dy,
                                             const Pack<T, N>& x) const {
    float g[N], v[N];
    widen_pack(dy, g);
    widen_pack(x, v);
    with_function(kind, [&](auto f) {
#pragma unroll
      for (int i = 0; i < N; ++i) g[i] *= f.both(v[i]).slope;
    });
    dx = narrow_pack<T, N>(g);
  }
};

struct Gated {
  ActivationKind kind;
  template <class T, int N>
  __device__ __forceinline__ void operator()(Pack<T, N>& y, const Pack<T, N>& gate,
                                             const Pack<T, N>& up) const {
    float v[N], u[N];
    widen_pack(gate, v);
    widen_pack(up, u);
    with_function(kind, [&](auto f) {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = f.value(v[i]) * u[i];
    });
    y = narrow_pack<T, N>(v);
  }
};

struct GatedSlopes {
  ActivationKind kind;
  template <class T, int N>
  __device__ __forceinline__ void operator()(Pack<T, N>& dgate, Pack<T, N>& dup,
                                             const Pack<T, N>& dy, const Pack<T, N>& gate,
                                             const Pack<T, N>& up) const {
    float g[N], v[N], u[N];
    widen_pack(dy, g);
    widen_pack(gate, v);
    widen_pack(up, u);
    with_function(kind, [&](auto f) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const ValueAndSlope both = f.both(v[i]);
        v[i] = g[i] * u[i] * both.slope;
        u[i] = g[i] * both.value;
      }
    });
    dgate = narrow_pack<T, N>(v);
    dup = narrow_pack<T, N>(u);
  }
};

template <class T>
Rows<T> rows_of(const StridedRows<T>& m) {
  return {m.data, m.stride};
}

}  // namespace

template <class T>
void activation(const T* x, ActivationKind kind, int64_t n, T* y, const GpuStream& on) {
  map_each<kPack<T>>(on, "activation", Value{kind}, n, std::tuple(y), std::tuple(x));
}

template <class T>
void activation_backward(const T* dy, const T* x, ActivationKind kind, int64_t n, T* dx,
                         const GpuStream& on) {
  map_each<kPack<T>>(on, "activation_backward", Slope{kind}, n, std::tuple(dx), std::tuple(dy, x));
}

template <class T>
void gated_activation(const GatedActivation<T>& call, const GpuStream& on) {
  map_each_row<kPack<T>>(on, "gated_activation", Gated{call.kind}, call.rows, call.cols,
                         std::tuple(rows_of(call.y)),
                         std::tuple(rows_of(call.gate), rows_of(call.up)));
}

template <class T>
void gated_activation_backward(const GatedActivationBackward<T>& call, const GpuStream& on) {
  map_each_row<kPack<T>>(on, "gated_activation_backward", GatedSlopes{call.kind}, call.rows,
                         call.cols, std::tuple(rows_of(call.dgate), rows_of(call.dup)),
                         std::tuple(rows_of(call.dy), rows_of(call.gate), rows_of(call.up)));
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
