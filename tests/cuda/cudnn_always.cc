// Attention by cuDNN wherever it can, in both modes, in the programs that this is linked into.
#include "cuda/attention_policies.h"

namespace ds::testing {
namespace {

[[maybe_unused]] const bool kSet = [] {
  kernels::GpuPolicy cudnn;
  cudnn.attention = kernels::AttentionChoice::kCudnn;
  kernels::GpuPolicy strict = cudnn;
  strict.strict_determinism = true;
  attention_policies() = {cudnn, strict};
  return true;
}();

}  // namespace
}  // namespace ds::testing
