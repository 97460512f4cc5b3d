// The types of operands, as conversions know them.
#pragma once

#include "kernels/float_type.h"
#include "kernels/matmul/matmul.h"

namespace ds::kernels::gemm {

inline FloatType float_type(MatmulType type) {
  switch (type) {
    case MatmulType::kBFloat16:
      return FloatType::kBFloat16;
    case MatmulType::kFloat16:
      return FloatType::kFloat16;
    default:
      return FloatType::kFloat32;
  }
}

// In bytes.
inline int64_t element_size(MatmulType type) { return type == MatmulType::kFloat32 ? 4 : 2; }

}  // namespace ds::kernels::gemm
