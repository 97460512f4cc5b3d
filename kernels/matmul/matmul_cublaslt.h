// Matrix products by cuBLASLt, in the place of our own kernels where it is there and has the form
// of the problem. Only for the sources of a CUDA build; the GPU must be current on the calling
// thread.
#pragma once

#include <optional>

#include "kernels/fp8/fp8.h"
#include "kernels/matmul/matmul.h"

namespace ds::kernels::cublaslt {

enum class Done {
  kNothing,    // nothing was queued
  kArguments,  // all but the activation: its arguments are in `pre`, without one in C
  kAll
};
Done multiply(const Matmul& problem, const GpuStream& on);

// See matmul_with_sums().
bool multiply_with_sums(const Matmul& problem, float* sums, const GpuStream& on);

// See matmul_times_derivative().
bool multiply_times_slope(const Matmul& problem, const GpuStream& on);

// The scratch for the best that multiply() does, or the function with the extra (for the most that
// is proposed, where proposals are to be timed); null where it does nothing.
std::optional<int64_t> workspace(const Matmul& problem, const GpuStream& on, MatmulExtra extra,
                                 const float* sums);

// See fp8_matmul() and its workspace; null where it does nothing.
bool multiply_fp8(const Fp8Matmul& problem, const GpuStream& on);
std::optional<int64_t> workspace_fp8(const Fp8Matmul& problem, const GpuStream& on);

}  // namespace ds::kernels::cublaslt
