// One fused pass of Adam or AdamW over flat arrays.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/thread_pool.h"

namespace ds::kernels {

struct AdamHyper {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;
  bool bias_correction = true;
  int64_t step = 1;
  float grad_scale = 1;
};

// What the loop multiplies by, worked out in double and rounded once.
struct AdamConstants {
  float beta1, beta1_rest;  // beta and 1 - beta
  float beta2, beta2_rest;
  float root_scale;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float step_size;        // lr / (1 - beta1^t)
  float coupled_decay;    // added to the gradient, times p
  float decoupled_decay;  // lr * weight decay
  float grad_scale;
};
AdamConstants adam_constants(const AdamHyper& hyper);

// g = grad * grad_scale + coupled_decay * p; m and v are the moving averages of g and g * g;
// p -= step_size * m / (sqrt(v) * root_scale + eps) + decoupled_decay * p. `model` receives p
// rounded to bf16 unless it is null.
void adam(const AdamConstants& constants, int64_t n, float* p, const float* grad, float* m,
          float* v, bfloat16* model, ThreadPool& pool);

namespace reference {
void adam(const AdamHyper& hyper, int64_t n, double* p, const double* grad, double* m, double* v);
}  // namespace reference

}  // namespace ds::kernels
