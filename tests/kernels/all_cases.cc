// The families whose objects a program links (op_cases.cmake): functions of the others are null
// here, so that this source is compiled once for all programs. Symbols that may be null must be of
// default visibility: only those are read from a table.
#include "kernels/all_cases.h"

namespace ds::testing {

[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> linear_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> activation_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> gated_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> loss_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> norm_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> rms_norm_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> embedding_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> rotary_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> dropout_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> elementwise_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> reduce_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> optimizer_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> attention_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> gemv_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> quantize_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> fp8_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> softmax_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> transform_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> moe_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> latent_cases();
[[gnu::weak, gnu::visibility("default")]] std::vector<OpCase> distillation_cases();

std::vector<CaseFamily> all_case_families() {
  std::vector<CaseFamily> linked;
  for (const CaseFamily& family : {
           CaseFamily{"linear", linear_cases},
           CaseFamily{"activation", activation_cases},
           CaseFamily{"gated", gated_cases},
           CaseFamily{"loss", loss_cases},
           CaseFamily{"norm", norm_cases},
           CaseFamily{"rms_norm", rms_norm_cases},
           CaseFamily{"embedding", embedding_cases},
           CaseFamily{"rotary", rotary_cases},
           CaseFamily{"dropout", dropout_cases},
           CaseFamily{"elementwise", elementwise_cases},
           CaseFamily{"reduce", reduce_cases},
           CaseFamily{"optimizer", optimizer_cases},
           CaseFamily{"attention", attention_cases},
           CaseFamily{"gemv", gemv_cases},
           CaseFamily{"quantize", quantize_cases},
           CaseFamily{"fp8", fp8_cases},
           CaseFamily{"softmax", softmax_cases},
           CaseFamily{"transform", transform_cases},
           CaseFamily{"moe", moe_cases},
           CaseFamily{"latent", latent_cases},
           CaseFamily{"distillation", distillation_cases},
       }) {
    if (family.cases != nullptr) linked.push_back(family);
  }
  return linked;
}

}  // namespace ds::testing
