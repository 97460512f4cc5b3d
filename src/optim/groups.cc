#include "optim/groups.h"

#include <algorithm>

#include "base/pattern.h"
#include "base/text.h"

namespace ds::optim {

namespace {

int32_t group_of(const OptimizerConfig& config, const nn::Parameter& parameter) {
  const auto number = [](size_t index) { return static_cast<int32_t>(index) + 1; };
  if (!parameter.group.empty()) {
    std::vector<std::string> names;
    for (size_t i = 0; i < config.groups.size(); ++i) {
      if (config.groups[i].name == parameter.group) return number(i);
      names.push_back(config.groups[i].name);
    }
    fail(Code::kConfig, "parameter ", printable(parameter.name, 200), " asks for group \"",
         printable(parameter.group, 200), "\", which /optimizer/param_groups does not have",
         names.empty() ? "" : "; it has " + join(names, ", "));
  }
  for (size_t i = 0; i < config.groups.size(); ++i) {
    const auto matches = [&](const std::string& pattern) {
      return matches_pattern(pattern, parameter.name);
    };
    const std::vector<std::string>& patterns = config.groups[i].match;
    if (std::any_of(patterns.begin(), patterns.end(), matches)) return number(i);
  }
  return 0;
}

}  // namespace

std::vector<int32_t> assign_groups(const OptimizerConfig& config,
                                   const nn::ParameterSet& parameters) {
  std::vector<int32_t> groups;
  groups.reserve(static_cast<size_t>(parameters.size()));
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    groups.push_back(group_of(config, parameters[id]));
  }
  return groups;
}

OptimizerConfig group_config(const OptimizerConfig& config, int32_t group) {
  OptimizerConfig out = config;
  out.groups.clear();
  if (group == 0) return out;
  const OptimizerGroupConfig& own = config.groups.at(static_cast<size_t>(group) - 1);
  const auto set = [](double& value, const std::optional<double>& override_value) {
    if (override_value) value = *override_value;
  };
  set(out.lr, own.lr);
  if (config.type == OptimizerType::kMuon) set(out.adam_lr, own.lr);
  set(out.lr, own.muon_lr);
  set(out.adam_lr, own.adam_lr);
  set(out.beta1, own.beta1);
  set(out.beta2, own.beta2);
  set(out.eps, own.eps);
  set(out.weight_decay, own.weight_decay);
  set(out.momentum, own.momentum);
  return out;
}

}  // namespace ds::optim
