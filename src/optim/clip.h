// Global-norm clipping (Pascanu et al., arXiv:1211.5063) in DeepSpeed's form.
#pragma once

#include <algorithm>

namespace ds::optim {

// Factor for gradients whose global norm is `norm`, so that it becomes at most `max_norm`;
// `max_norm` 0 means no clipping.
inline double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return 1 / std::max(1.0, (norm + 1e-6) / max_norm);
}

}  // namespace ds::optim
