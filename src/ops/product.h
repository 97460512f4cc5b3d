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

// With the scratch that a GPU splits sums in.
inline void multiply(const OpContext& ctx, kernels::Matmul p) {
  run(ctx, [&](auto& on) {
    Tensor workspace;
    if constexpr (std::is_same_v<decltype(on), const kernels::GpuStream&>) {
      p.workspace_bytes = kernels::matmul_workspace(p, on);
      if (p.workspace_bytes > 0) {
        workspace = ctx.workspace(DType::kUInt8, {p.workspace_bytes});
        p.workspace = workspace.raw();
      }
    }
    kernels::matmul(p, on);
  });
}

}  // namespace ds::ops
