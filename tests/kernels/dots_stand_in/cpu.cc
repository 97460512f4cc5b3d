// cpu_features() of this CPU as if it had no AMX.
#define cpu_features features_of_this_cpu
#include "kernels/cpu.cc"
#undef cpu_features

namespace ds::kernels {

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = [] {
    CpuFeatures out = features_of_this_cpu();
    out.amx_bf16 = out.amx_int8 = false;
    return out;
  }();
  return features;
}

}  // namespace ds::kernels
