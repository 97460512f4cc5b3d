// Activation functions and gated activations (Shazeer, arXiv:2002.05202), with their gradients. T
// is float, bfloat16 or float16; arithmetic is fp32.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

enum class ActivationKind { kRelu, kSilu, kGeluTanh, kGeluErf, kTanh };

// y = f(x); y may be x.
template <class T>
void activation(const T* x, ActivationKind kind, int64_t n, T* y, ThreadPool& pool);
template <class T>
void activation(const T* x, ActivationKind kind, int64_t n, T* y, const GpuStream& on);
// dx = dy * f'(x); dx may be dy or x.
template <class T>
void activation_backward(const T* dy, const T* x, ActivationKind kind, int64_t n, T* dx,
                         ThreadPool& pool);
template <class T>
void activation_backward(const T* dy, const T* x, ActivationKind kind, int64_t n, T* dx,
                         const GpuStream& on);

// A matrix whose dense rows lie `stride` elements apart.
template <class T>
struct StridedRows {
  T* data = nullptr;
  int64_t stride = 0;
};

// y = f(gate) * up over [rows, cols].
template <class T>
struct GatedActivation {
  ActivationKind kind = ActivationKind::kSilu;
  int64_t rows = 0, cols = 0;
  StridedRows<const T> gate, up;
  StridedRows<T> y;
};
template <class T>
void gated_activation(const GatedActivation<T>& call, ThreadPool& pool);
template <class T>
void gated_activation(const GatedActivation<T>& call, const GpuStream& on);

// dgate = dy * up * f'(gate), dup = dy * f(gate); dgate may be gate, dup may be up.
template <class T>
struct GatedActivationBackward {
  ActivationKind kind = ActivationKind::kSilu;
  int64_t rows = 0, cols = 0;
  StridedRows<const T> dy, gate, up;
  StridedRows<T> dgate, dup;
};
template <class T>
void gated_activation_backward(const GatedActivationBackward<T>& call, ThreadPool& pool);
template <class T>
void gated_activation_backward(const GatedActivationBackward<T>& call, const GpuStream& on);

namespace reference {
double activation(double v, ActivationKind kind);
double activation_derivative(double v, ActivationKind kind);
}  // namespace reference

}  // namespace ds::kernels
