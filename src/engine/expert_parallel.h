// Expert parallelism as a configuration asks for it: the mesh that follows, what a rank holds of
// the experts, and whether ranks can share them.
#pragma once

#include "config/config.h"
#include "mesh/mesh_shape.h"
#include "nn/parameter.h"
#include "zero/share_options.h"

namespace ds {

// Of a run of so many ranks. Throws kConfig where the ranks that share experts do not divide them.
MeshSizes mesh_sizes(const Config& config, int world);

// Throws kConfig unless every rank can have the same number of each layer's experts, which are
// alike.
void check_experts(const Config& config, const nn::ParameterSet& parameters);

// Tells `options` which parameters ranks share, and which of them a rank does not hold. Nothing
// where each holds all.
void place_experts(const nn::ParameterSet& parameters, const MeshShape& mesh, int rank,
                   zero::ShareOptions& options);

}  // namespace ds
