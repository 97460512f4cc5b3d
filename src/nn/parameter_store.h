// How operators reach parameters: through guards that make them resident for one operator.
// Sharding, offload and quantised weights are policies behind this interface; no model knows of
// them.
#pragma once

#include "nn/parameter.h"
#include "ops/quantized_linear.h"

namespace ds::nn {

class ParameterStore {
 public:
  virtual ~ParameterStore() = default;

  // Makes the parameter resident in the compute type until the matching release.
  virtual Tensor acquire(ParamId id) = 0;
  virtual void release(ParamId id) noexcept = 0;

  // fp32 buffer that backward adds this parameter's gradient to; no tensor when it is frozen.
  virtual Tensor gradient(ParamId id) = 0;
  // The same for an operator that can also overwrite, which it must where `add` is false: the
  // buffer then holds nothing of this step yet. That saves clearing and reading it.
  struct GradientTarget {
    Tensor sum;
    bool add = true;
  };
  virtual GradientTarget gradient_target(ParamId id) = 0;
  // Backward has added the last contribution of this pass: the gradient may be reduced now.
  virtual void gradient_complete(ParamId id) = 0;

  virtual DType compute_type() const = 0;

  // How the weight of a linear layer is held when it is quantised, else null: then it is acquired.
  virtual const ops::QuantizedWeight* quantized(ParamId) const { return nullptr; }

  // What is stored: names, shapes, adapters.
  virtual const ParameterSet& parameters() const = 0;
};

// Holds one parameter resident for a scope.
class ParameterGuard {
 public:
  ParameterGuard(ParameterStore& store, ParamId id)
      : store_(id == kNoParam ? nullptr : &store),
        id_(id),
        tensor_(id == kNoParam ? Tensor() : store.acquire(id)) {}
  ~ParameterGuard() {
    if (store_ != nullptr) store_->release(id_);
  }
  ParameterGuard(const ParameterGuard&) = delete;
  ParameterGuard& operator=(const ParameterGuard&) = delete;

  const Tensor& operator*() const { return tensor_; }  // empty for kNoParam

 private:
  ParameterStore* store_;
  ParamId id_;
  Tensor tensor_;
};

}  // namespace ds::nn
