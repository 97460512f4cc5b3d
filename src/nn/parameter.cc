#include "nn/parameter.h"

#include <algorithm>

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

int64_t ParameterSet::active_elements(int64_t experts_per_token) const {
  int64_t total = 0;
  std::unordered_map<int64_t, int64_t> shared;  // of layers of so many experts, in all
  for (const Parameter& p : parameters_) {
    (p.split.experts > 0 ? shared[p.split.experts] : total) += p.shape.elements();
  }
  // Experts of a layer are of one size, so each has an equal part.
  for (const auto& [experts, elements] : shared) {
    total += elements / experts * std::min(experts, experts_per_token);
  }
  return total;
}

ParamId ParameterSet::lookup(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? kNoParam : found->second;
}

void ParameterSet::adapt(ParamId weight, const Adapter& adapter) {
  const Shape& w = (*this)[weight].shape;
  const Shape &a = (*this)[adapter.a].shape, &b = (*this)[adapter.b].shape;
  DS_CHECK(w.dims() == 2 && a.dims() == 2 && b.dims() == 2 && a[1] == w[1] && b[0] == w[0] &&
               a[0] == b[1],
           Code::kInvalidArgument, "an adapter of ", a.text(), " and ", b.text(),
           " does not fit the weight ", (*this)[weight].name, " of ", w.text());
  DS_CHECK(adapters_.emplace(weight, adapter).second, Code::kState, "the weight ",
           (*this)[weight].name, " carries an adapter already");
}

const Adapter* ParameterSet::adapter(ParamId weight) const {
  const auto found = adapters_.find(weight);
  return found == adapters_.end() ? nullptr : &found->second;
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
