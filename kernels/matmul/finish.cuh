// What follows a sum of a matrix product on a GPU: scale, bias, what C held; and activations, which
// a kernel of its own applies to finished arguments.
#pragma once

#include "kernels/activation/functions.cuh"
#include "kernels/matmul/matmul.h"

namespace ds::kernels::cuda {

// The part of a Matmul that its sums need.
struct Finish {
  float alpha = 1;
  const void* bias = nullptr;
  const void* before = nullptr;  // what to add, or null
  int64_t before_stride = 0;
  void* to = nullptr;  // the arguments of the activation, or C
  int64_t to_stride = 0;
  bool wide_out = false;  // C is fp32, whatever the inputs are

  Finish() = default;
  explicit Finish(const Matmul& p)
      : alpha(p.alpha),
        bias(p.bias),
        before(p.accumulate ? p.c : nullptr),
        before_stride(p.c_stride),
        to(p.activation && p.pre != nullptr ? p.pre : p.c),
        to_stride(p.activation && p.pre != nullptr ? p.pre_stride : p.c_stride),
        wide_out(p.out == MatmulType::kFloat32) {}
};

// alpha sum + bias + C; Out is the type of C.
template <class T, class Out>
__device__ __forceinline__ void finish_as(const Finish& f, int64_t row, int64_t column, float sum) {
  float v = f.alpha * sum;
  if (f.bias != nullptr) v += widen(static_cast<const T*>(f.bias)[column]);
  if (f.before != nullptr) {
    v += widen(static_cast<const Out*>(f.before)[row * f.before_stride + column]);
  }
  static_cast<Out*>(f.to)[row * f.to_stride + column] = narrow<Out>(v);
}

// c = f(arguments) where the call wants one.
void finish_activation(const Matmul& p, const GpuStream& on);

}  // namespace ds::kernels::cuda
