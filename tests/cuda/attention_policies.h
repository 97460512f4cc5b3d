// Whose kernels the tests of attention's shapes run with: those of this library unless a program
// says otherwise before main (cudnn_always.cc).
#pragma once

#include <vector>

#include "kernels/cuda/gpu_stream.h"

namespace ds::testing {

inline std::vector<kernels::GpuPolicy>& attention_policies() {
  static std::vector<kernels::GpuPolicy> it = [] {
    kernels::GpuPolicy own;
    own.attention = kernels::AttentionChoice::kOwn;
    return std::vector{own};
  }();
  return it;
}

}  // namespace ds::testing
