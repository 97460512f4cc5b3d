#include "engine/expert_parallel.h"

#include <string>
#include <vector>

#include "base/text.h"
#include "mesh/row_exchange.h"
#include "models/shared_experts.h"

namespace ds {
namespace {

constexpr const char* kSize = "configuration: /expert_parallel/autoep_size: ";

// Experts of one place among the ranks are laid out as those of every other.
void check_alike(const nn::Parameter& p, const nn::Parameter& other) {
  const auto differ = [&](const char* how) {
    fail(Code::kConfig, "configuration: /expert_parallel: ", printable(other.name), how,
         printable(p.name), ": ranks that share experts lay them out alike; ",
         "treat all experts of a layer alike, or leave expert_parallel out");
  };
  if (p.shape != other.shape) differ(" has another shape than ");
  if (p.trainable != other.trainable) differ(" is frozen or trained unlike ");
  if (p.decays != other.decays || p.group != other.group) differ(" is in another group than ");
}

}  // namespace

MeshSizes mesh_sizes(const Config& config, int world) {
  MeshSizes sizes;
  sizes.expert = config.expert_parallel.ranks();
  DS_CHECK(sizes.expert <= world && world % sizes.expert == 0, Code::kConfig, kSize, sizes.expert,
           " ranks that share experts do not divide the ", world, world == 1 ? " rank" : " ranks",
           " of the run; use a divisor, or another number of ranks");
  return sizes;
}

void check_exchange(const Config& config, const MeshShape& mesh, std::span<const int> node_of) {
  const ExpertParallelConfig& experts = config.expert_parallel;
  if (experts.ranks() == 1 || experts.hierarchical_all_to_all != true) return;
  check_two_steps(mesh, MeshGroup::kExpert, node_of,
                  "configuration: /expert_parallel/hierarchical_all_to_all");
}

void check_experts(const Config& config, const nn::ParameterSet& parameters) {
  const int ranks = config.expert_parallel.ranks();
  if (ranks == 1) return;
  models::check_shared_experts(parameters, ranks, kSize, "leave expert_parallel out");
  std::vector<std::vector<nn::ParamId>> by_place(static_cast<size_t>(ranks));
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    if (p.split.experts == 0) continue;
    by_place[static_cast<size_t>(p.expert / (p.split.experts / ranks))].push_back(id);
  }
  for (const std::vector<nn::ParamId>& other : by_place) {
    DS_CHECK(other.size() == by_place[0].size(), Code::kConfig, "configuration: /expert_parallel: ",
             "experts of one layer have different numbers of parameters (adapters, perhaps, beside "
             "some of them); ranks that share experts lay them out alike");
    for (size_t i = 0; i < other.size(); ++i) {
      check_alike(parameters[by_place[0][i]], parameters[other[i]]);
    }
  }
}

}  // namespace ds
