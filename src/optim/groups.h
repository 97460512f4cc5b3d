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

// Whether weight decay applies to a parameter of a group: where all decays, where the group has a
// weight decay of its own, or where the parameter says so.
bool decays_in(const OptimizerConfig& config, const nn::Parameter& parameter, int32_t group);

// What maximal update parametrisation multiplies the learning rate and the weight decay of a
// parameter by. Throws kConfig where the base shape that matches has other dimensions, or three and
// more of them are widths.
struct WidthFactors {
  double rate = 1;
  double decay = 1;
};
WidthFactors width_factors(const OptimizerConfig& config, const nn::Parameter& parameter);

// The configuration with the overrides of a group in place.
OptimizerConfig group_config(const OptimizerConfig& config, int32_t group);

}  // namespace ds::optim
