#include "optim/groups.h"

#include <algorithm>

#include "base/pattern.h"
#include "base/text.h"

namespace ds::optim {

namespace {

bool any_matches(const std::vector<std::string>& patterns, const nn::Parameter& parameter) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return matches_pattern(pattern, parameter.name);
  });
}

int32_t group_of(const OptimizerConfig& config, const nn::Parameter& parameter) {
  const auto number = [](size_t index) { return static_cast<int32_t>(index) + 1; };
  if (!parameter.group.empty()) {
    std::vector<std::string> names;
    for (size_t i = 0; i < config.param_groups.size(); ++i) {
      if (config.param_groups[i].name == parameter.group) return number(i);
      names.push_back(config.param_groups[i].name);
    }
    fail(Code::kConfig, "parameter ", printable(parameter.name, 200), " asks for group \"",
         printable(parameter.group, 200), "\", which /optimizer/param_groups does not have",
         names.empty() ? "" : "; it has " + join(names, ", "));
  }
  for (size_t i = 0; i < config.param_groups.size(); ++i) {
    if (any_matches(config.param_groups[i].match, parameter)) return number(i);
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

bool decays_in(const OptimizerConfig& config, const nn::Parameter& parameter, int32_t group) {
  if (config.decay_all || parameter.decays) return true;
  return group > 0 &&
         config.param_groups.at(static_cast<size_t>(group) - 1).weight_decay.has_value();
}

WidthFactors width_factors(const OptimizerConfig& config, const nn::Parameter& parameter) {
  if (config.mu == MuRule::kNone) return {};
  const auto found =
      std::find_if(config.base_shapes.begin(), config.base_shapes.end(),
                   [&](const BaseShapeConfig& one) { return any_matches(one.match, parameter); });
  if (found == config.base_shapes.end()) return {};
  const Shape& shape = parameter.shape;
  DS_CHECK(std::ssize(found->shape) == shape.dims(), Code::kConfig, "parameter ",
           printable(parameter.name, 200), " of shape ", shape.text(),
           ": its base shape in /optimizer/params/base_shapes has ", found->shape.size(),
           " dimensions");
  std::vector<double> quotients(found->shape.size(), 1.0);  // 1 where the size is no width
  int widths = 0;
  double last = 1;
  for (size_t i = 0; i < quotients.size(); ++i) {
    const int64_t base = found->shape[i], size = shape[static_cast<int>(i)];
    if (base == 0 || base == size) continue;
    last = quotients[i] = static_cast<double>(size) / static_cast<double>(base);
    ++widths;
  }
  DS_CHECK(widths <= 2, Code::kConfig, "parameter ", printable(parameter.name, 200), " of shape ",
           shape.text(), ": /optimizer/params/base_shapes makes ", widths,
           " of its dimensions widths; two at most have rates");
  if (widths == 2) {
    const double quotient = config.mu == MuRule::kAdam ? last : quotients[1] / quotients[0];
    return {1 / quotient, quotient};
  }
  return config.mu == MuRule::kSgd ? WidthFactors{last, 1 / last} : WidthFactors{};
}

OptimizerConfig group_config(const OptimizerConfig& config, int32_t group) {
  OptimizerConfig out = config;
  out.param_groups.clear();
  if (group == 0) return out;
  const OptimizerGroupConfig& own = config.param_groups.at(static_cast<size_t>(group) - 1);
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
