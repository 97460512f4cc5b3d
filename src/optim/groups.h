// Parameter groups: which one a parameter belongs to, and each group's hyperparameters.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "nn/parameter.h"

namespace ds::optim {

// For every parameter: the group that it names, else the first one with a pattern that matches its
// name, else 0. Groups count from 1 in the order of OptimizerConfig::groups. Throws kConfig for a
// parameter that names a group which does not exist.
std::vector<int32_t> assign_groups(const OptimizerConfig& config,
                                   const nn::ParameterSet& parameters);

// The configuration with the overrides of a group in place.
OptimizerConfig group_config(const OptimizerConfig& config, int32_t group);

}  // namespace ds::optim
