// Expert parallelism as a configuration asks for it: the mesh that follows, and whether ranks can
// share the experts.
#pragma once

#include <span>

#include "config/config.h"
#include "mesh/mesh_shape.h"
#include "nn/parameter.h"

namespace ds {

// Of a run of so many ranks. Throws kConfig where the ranks that share experts do not divide them.
MeshSizes mesh_sizes(const Config& config, int world);

// Throws kConfig where ranks that share experts cannot exchange rows in two steps, and are asked
// to. `node_of` is by rank.
void check_exchange(const Config& config, const MeshShape& mesh, std::span<const int> node_of);

// Throws kConfig unless every rank can have the same number of each layer's experts, which are
// alike.
void check_experts(const Config& config, const nn::ParameterSet& parameters);

}  // namespace ds
