// Values of parameters that callers read and set: what this rank owns of them, and whole states of
// the optimizer.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tensor/tensor.h"
#include "zero/flat_layout.h"

namespace ds {

struct OpenStep;
class ParameterScopes;
class StepGuard;
struct RunContext;
class Updater;

class ParameterValues {
 public:
  ParameterValues(RunContext& run, OpenStep& open, const ParameterScopes& scopes, Updater& updater,
                  const StepGuard& guard)
      : run_(run), open_(open), scopes_(scopes), updater_(updater), guard_(guard) {}

  // What this rank owns of a parameter's flat elements, and those of its fp32 value, its gradient
  // or a state of the optimizer ("parameter", "gradient", "exp_avg"). Reading waits for nobody;
  // setting values is every rank's call, each with its part.
  zero::FlatRange local_range(const std::string& name);
  Tensor local(const std::string& name, const std::string& what);
  void set_local(const std::string& name, const std::string& what, const Tensor& values);

  // Copies of whole fp32 tensors.
  std::vector<std::string> optimizer_states(const std::string& name);
  Tensor optimizer_state(const std::string& name, const std::string& state);
  void set_optimizer_state(const std::string& name, const std::string& state, const Tensor& value);

 private:
  nn::ParamId held_like(nn::ParamId id) const;
  void set_values(const std::string& name, const std::function<void()>& body);
  void set_local_gradient(const std::string& name, const Tensor& values);

  RunContext& run_;
  OpenStep& open_;
  const ParameterScopes& scopes_;
  Updater& updater_;
  const StepGuard& guard_;
};

}  // namespace ds
