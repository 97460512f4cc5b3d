// Parameters by logical identity: name, global shape, aliases, how they start and whether they
// decay. Where their bytes lie is somebody else's business (ParameterStore).
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensor/tensor.h"

namespace ds::nn {

using ParamId = int32_t;
inline constexpr ParamId kNoParam = -1;

enum class Init { kZeros, kOnes, kNormal };

struct Parameter {
  std::string name;
  Shape shape;
  Init init = Init::kZeros;
  double init_std = 0;  // for kNormal
  bool decays = false;  // weight decay applies (matrices, not biases and norms)
  bool trainable = true;
  std::vector<std::string> aliases = {};  // names of other places that use the same tensor
  std::string group = {};  // of the optimizer's hyperparameters; "" = the default ones
  int64_t expert = -1;     // index of the expert it belongs to, -1 = none
};

class ParameterSet {
 public:
  ParamId add(Parameter parameter);
  const Parameter& operator[](ParamId id) const { return parameters_[static_cast<size_t>(id)]; }
  ParamId size() const { return static_cast<ParamId>(parameters_.size()); }
  int64_t elements() const;
  // Finds by name or alias; throws kNotFound with the nearest name.
  ParamId find(const std::string& name) const;
  // kNoParam when there is none.
  ParamId lookup(const std::string& name) const;

 private:
  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, ParamId> by_name_;
};

}  // namespace ds::nn
