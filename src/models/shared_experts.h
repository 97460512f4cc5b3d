// Experts that ranks share: whether they can, and what each of them has.
#pragma once

#include <string_view>
#include <vector>

#include "mesh/mesh.h"
#include "nn/parameter.h"

namespace ds::models {

// Throws kConfig, with a text that begins with `where`, unless so many ranks can have the same
// number of each layer's experts; `otherwise` says what to do with a model that has none.
void check_shared_experts(const nn::ParameterSet& parameters, int ranks, std::string_view where,
                          std::string_view otherwise);

// By parameter, whether this rank of the mesh holds it: its experts, and all that is no expert.
std::vector<bool> parameters_held(const nn::ParameterSet& parameters, const Mesh& mesh);

}  // namespace ds::models
