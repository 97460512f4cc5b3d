#include "nn/parameter.h"

namespace ds::nn {

ParamId ParameterSet::add(Parameter parameter) {
  const ParamId id = size();
  const auto claim = [&](const std::string& name) {
    DS_CHECK(by_name_.emplace(name, id).second, Code::kInvalidArgument, "two parameters are named ",
             name);
  };
  claim(parameter.name);
  for (const std::string& alias : parameter.aliases) claim(alias);
  parameters_.push_back(std::move(parameter));
  return id;
}

int64_t ParameterSet::elements() const {
  int64_t total = 0;
  for (const Parameter& p : parameters_) total += p.shape.elements();
  return total;
}

ParamId ParameterSet::lookup(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? kNoParam : found->second;
}

ParamId ParameterSet::find(const std::string& name) const {
  const ParamId id = lookup(name);
  if (id != kNoParam) return id;
  std::vector<std::string> names;
  for (const auto& [known, unused] : by_name_) names.push_back(known);
  const std::string nearest = nearest_name(name, names);
  fail(Code::kNotFound, "no parameter is named ", printable(name),
       nearest.empty() ? "" : "; did you mean " + nearest + "?");
}

}  // namespace ds::nn
