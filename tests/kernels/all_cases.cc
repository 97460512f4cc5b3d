#include "kernels/all_cases.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>

#include "kernels/case_families.h"

namespace ds::testing {

// Of cases_<family>.cc. Sources of several families are one translation unit, so each has a
// namespace.
namespace linear_rows {
std::vector<OpCase> cases();
}
namespace activation_rows {
std::vector<OpCase> cases();
}
namespace gated_rows {
std::vector<OpCase> cases();
}
namespace loss_rows {
std::vector<OpCase> cases();
}
namespace norm_rows {
std::vector<OpCase> cases();
}
namespace rms_norm_rows {
std::vector<OpCase> cases();
}
namespace embedding_rows {
std::vector<OpCase> cases();
}
namespace rotary_rows {
std::vector<OpCase> cases();
}
namespace dropout_rows {
std::vector<OpCase> cases();
}
namespace elementwise_rows {
std::vector<OpCase> cases();
}
namespace reduce_rows {
std::vector<OpCase> cases();
}
namespace optimizer_rows {
std::vector<OpCase> cases();
}
namespace attention_rows {
std::vector<OpCase> cases();
}
namespace gemv_rows {
std::vector<OpCase> cases();
}
namespace quantize_rows {
std::vector<OpCase> cases();
}
namespace fp8_rows {
std::vector<OpCase> cases();
}
namespace softmax_rows {
std::vector<OpCase> cases();
}
namespace transform_rows {
std::vector<OpCase> cases();
}
namespace moe_rows {
std::vector<OpCase> cases();
}
namespace latent_rows {
std::vector<OpCase> cases();
}
namespace distillation_rows {
std::vector<OpCase> cases();
}

std::vector<CaseFamily> all_case_families() {
  std::vector<CaseFamily> chosen;
  std::istringstream names(kCaseFamilies);
  const std::vector<std::string> asked{std::istream_iterator<std::string>(names), {}};
  for (const CaseFamily& family : {
           CaseFamily{"linear", linear_rows::cases},
           CaseFamily{"activation", activation_rows::cases},
           CaseFamily{"gated", gated_rows::cases},
           CaseFamily{"loss", loss_rows::cases},
           CaseFamily{"norm", norm_rows::cases},
           CaseFamily{"rms_norm", rms_norm_rows::cases},
           CaseFamily{"embedding", embedding_rows::cases},
           CaseFamily{"rotary", rotary_rows::cases},
           CaseFamily{"dropout", dropout_rows::cases},
           CaseFamily{"elementwise", elementwise_rows::cases},
           CaseFamily{"reduce", reduce_rows::cases},
           CaseFamily{"optimizer", optimizer_rows::cases},
           CaseFamily{"attention", attention_rows::cases},
           CaseFamily{"gemv", gemv_rows::cases},
           CaseFamily{"quantize", quantize_rows::cases},
           CaseFamily{"fp8", fp8_rows::cases},
           CaseFamily{"softmax", softmax_rows::cases},
           CaseFamily{"transform", transform_rows::cases},
           CaseFamily{"moe", moe_rows::cases},
           CaseFamily{"latent", latent_rows::cases},
           CaseFamily{"distillation", distillation_rows::cases},
       }) {
    if (std::ranges::find(asked, family.name) != asked.end()) chosen.push_back(family);
  }
  return chosen;
}

}  // namespace ds::testing
