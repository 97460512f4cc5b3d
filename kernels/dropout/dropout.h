// Dropout whose mask comes from a counted random stream, so that backward makes it again.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/philox.h"
#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

// Element i, which is element e = i % sample_elements of sample s = i / sample_elements, is dropped
// when stream.bits(first_of_sample(s) + e) < threshold; the others are multiplied by keep_scale.
struct DropoutMask {
  RandomStream stream;
  int64_t sample_elements = 1;
  uint32_t threshold = 0;
  float keep_scale = 1;
};
// p in [0, 1).
DropoutMask dropout_mask(const RandomStream& stream, int64_t sample_elements, double p);

// y = residual + dropped x; `residual` may be null, y may be x or residual. Backward is the same
// without a residual. A threshold of 0 makes no random numbers.
void dropout(const DropoutMask& mask, const float* x, const float* residual, int64_t n, float* y,
             ThreadPool& pool);
void dropout(const DropoutMask& mask, const float* x, const float* residual, int64_t n, float* y,
             const GpuStream& on);
void dropout(const DropoutMask& mask, const bfloat16* x, const bfloat16* residual, int64_t n,
             bfloat16* y, ThreadPool& pool);
void dropout(const DropoutMask& mask, const bfloat16* x, const bfloat16* residual, int64_t n,
             bfloat16* y, const GpuStream& on);
void dropout(const DropoutMask& mask, const float16* x, const float16* residual, int64_t n,
             float16* y, ThreadPool& pool);
void dropout(const DropoutMask& mask, const float16* x, const float16* residual, int64_t n,
             float16* y, const GpuStream& on);

namespace reference {
void dropout(const RandomStream& stream, int64_t sample_elements, double p, const double* x,
             const double* residual, int64_t n, double* y);
}  // namespace reference

}  // namespace ds::kernels
