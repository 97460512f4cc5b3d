#include "models/shared_experts.h"

#include "base/text.h"

namespace ds::models {

void check_shared_experts(const nn::ParameterSet& parameters, int ranks, std::string_view where,
                          std::string_view otherwise) {
  if (ranks == 1) return;
  bool any = false;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    if (p.split.experts == 0) continue;
    any = true;
    DS_CHECK(p.split.experts % ranks == 0, Code::kConfig, where, ranks, " ranks cannot share the ",
             p.split.experts, " experts of the layer of ", printable(p.name),
             " equally; use a divisor of every layer's number of experts");
    DS_CHECK(p.expert >= 0, Code::kUnsupported, where, printable(p.name),
             " is of all experts of a layer together, which ranks cannot share so far");
  }
  DS_CHECK(any, Code::kConfig, where, "the model has no layers of experts that ranks could share; ",
           otherwise);
}

std::vector<bool> parameters_held(const nn::ParameterSet& parameters, const Mesh& mesh) {
  std::vector<bool> held;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    held.push_back(nn::shard_spec(parameters[id], mesh.shape(), mesh.rank()).held());
  }
  return held;
}

}  // namespace ds::models
