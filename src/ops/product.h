// Running a checked matrix product.
#pragma once

#include <type_traits>

#include "kernels/matmul/matmul.h"
#include "ops/checks.h"

namespace ds::ops {

inline kernels::MatmulType matmul_type(const Tensor& tensor) {
  return with_float_type(tensor, [](auto type) {
    using T = decltype(type);
    return std::is_same_v<T, float>      ? kernels::MatmulType::kFloat32
           : std::is_same_v<T, bfloat16> ? kernels::MatmulType::kBFloat16
                                         : kernels::MatmulType::kFloat16;
  });
}

// Whether run() gave the kernel a GPU.
template <class On>
inline constexpr bool kRunsOnGpu = std::is_same_v<On, const kernels::GpuStream&>;

// The scratch for p on a GPU; it lives as long as the tensor. `extra`, `sums`: see
// matmul_workspace().
template <class On>
Tensor give_workspace(const OpContext& ctx, kernels::Matmul& p, const On& on,
                      kernels::MatmulExtra extra = kernels::MatmulExtra::kNone,
                      const float* sums = nullptr) {
  p.workspace_bytes = kernels::matmul_workspace(p, on, extra, sums);
  if (p.workspace_bytes == 0) return {};
  Tensor workspace = ctx.workspace(DType::kUInt8, {p.workspace_bytes});
  p.workspace = workspace.raw();
  return workspace;
}

inline void multiply(const OpContext& ctx, kernels::Matmul p) {
  run(ctx, [&](auto& on) {
    Tensor workspace;
    if constexpr (kRunsOnGpu<decltype(on)>) workspace = give_workspace(ctx, p, on);
    kernels::matmul(p, on);
  });
}

}  // namespace ds::ops
