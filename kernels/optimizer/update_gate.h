// Whether an update happens and what it multiplies gradients by, decided from their norm where that
// is: on a GPU the update is queued before the host has seen the norm.
#pragma once

#include <cstdint>

#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels {

struct GateRule {
  double loss_scale = 1;  // that the gradients carry
  double share = 1;       // they are multiplied by it besides
  double clipping = 0;    // the largest norm; 0 = any
  bool may_skip = true;   // an update with a norm that is not finite
  double skip_above = 0;  // an update with a larger norm is skipped; 0 = none
};

struct UpdateGate {
  double norm = 0;       // of the unscaled gradients, before clipping
  float grad_scale = 1;  // what gradients are multiplied by
  int32_t open = 1;      // 0: the update is skipped
};

// constexpr, so that device code has them too.

// Global-norm clipping (Pascanu et al., arXiv:1211.5063) in DeepSpeed's form: the factor for
// gradients whose norm is `norm`, so that it becomes at most `max_norm`; 0 means no clipping.
constexpr double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  const double over = (norm + 1e-6) / max_norm;
  return 1 / (over > 1 ? over : 1.0);
}

// `norm` is that of the gradients as they are.
constexpr UpdateGate decide_update(double norm, const GateRule& rule) {
  const double unscaled = norm / rule.loss_scale * rule.share;
  const bool finite = unscaled - unscaled == 0;
  const bool small = !finite || rule.skip_above <= 0 || unscaled <= rule.skip_above;
  return {unscaled,
          static_cast<float>(clip_factor(unscaled, rule.clipping) / rule.loss_scale * rule.share),
          small && (finite || !rule.may_skip) ? 1 : 0};
}

// `squares` are the words of an ExactSum of the gradients' squares, with carries done.
void update_gate(const int64_t* squares, const GateRule& rule, UpdateGate* gate, ThreadPool& pool);
void update_gate(const int64_t* squares, const GateRule& rule, UpdateGate* gate,
                 const GpuStream& on);

}  // namespace ds::kernels
