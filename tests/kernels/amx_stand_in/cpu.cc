// cpu_features() of a CPU that has the tiles of this program.
#define cpu_features features_of_this_cpu
#include "kernels/cpu.cc"
#undef cpu_features

namespace ds::kernels {

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = [] {
    CpuFeatures out = features_of_this_cpu();
    out.amx_bf16 = out.amx_int8 = out.avx512_bf16 && out.avx512_vnni;
    return out;
  }();
  return features;
}

}  // namespace ds::kernels
