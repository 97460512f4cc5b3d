// Compiled once per program; op_cases.cmake defines DS_HAVE_<FAMILY> for the families linked in.
#include "kernels/all_cases.h"

namespace ds::testing {

std::vector<CaseFamily> all_case_families() {
  return {
#ifdef DS_HAVE_LINEAR
      {"linear", linear_cases},
#endif
#ifdef DS_HAVE_ACTIVATION
      {"activation", activation_cases},
#endif
#ifdef DS_HAVE_GATED
      {"gated", gated_cases},
#endif
#ifdef DS_HAVE_LOSS
      {"loss", loss_cases},
#endif
#ifdef DS_HAVE_NORM
      {"norm", norm_cases},
#endif
#ifdef DS_HAVE_RMS_NORM
      {"rms_norm", rms_norm_cases},
#endif
#ifdef DS_HAVE_EMBEDDING
      {"embedding", embedding_cases},
#endif
#ifdef DS_HAVE_ROTARY
      {"rotary", rotary_cases},
#endif
#ifdef DS_HAVE_DROPOUT
      {"dropout", dropout_cases},
#endif
#ifdef DS_HAVE_ELEMENTWISE
      {"elementwise", elementwise_cases},
#endif
#ifdef DS_HAVE_REDUCE
      {"reduce", reduce_cases},
#endif
#ifdef DS_HAVE_OPTIMIZER
      {"optimizer", optimizer_cases},
#endif
#ifdef DS_HAVE_ATTENTION
      {"attention", attention_cases},
#endif
#ifdef DS_HAVE_GEMV
      {"gemv", gemv_cases},
#endif
#ifdef DS_HAVE_QUANTIZE
      {"quantize", quantize_cases},
#endif
#ifdef DS_HAVE_FP8
      {"fp8", fp8_cases},
#endif
#ifdef DS_HAVE_SOFTMAX
      {"softmax", softmax_cases},
#endif
#ifdef DS_HAVE_TRANSFORM
      {"transform", transform_cases},
#endif
#ifdef DS_HAVE_MOE
      {"moe", moe_cases},
#endif
#ifdef DS_HAVE_LATENT
      {"latent", latent_cases},
#endif
#ifdef DS_HAVE_DISTILLATION
      {"distillation", distillation_cases},
#endif
  };
}

}  // namespace ds::testing
