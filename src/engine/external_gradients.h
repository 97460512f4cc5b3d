// Gradients that the caller computed: added, replaced, read, or written in place.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "nn/parameter.h"
#include "tensor/tensor.h"

namespace ds {

struct OpenStep;
class ParameterScopes;
class StepGuard;
struct RunContext;

// Gradients of the caller that have left for a bucket come back: before that nobody sees them, and
// they are added to what is set. Every rank makes the call.
void reduce_given(RunContext& run, const OpenStep& open);

class ExternalGradients {
 public:
  ExternalGradients(RunContext& run, OpenStep& open, ParameterScopes& scopes,
                    const StepGuard& guard)
      : run_(run), open_(open), scopes_(scopes), guard_(guard) {}

  // fp32, bf16 or fp16, of the parameters' shapes, carrying the loss scale. `indices` number
  // parameters in the model's order; empty means 0, 1, 2, ...
  void add(std::span<const int64_t> indices, std::span<const Tensor* const> gradients);
  // Where gradients lie in files and cannot be written, the open step is given up.
  void set(const std::string& name, const Tensor& value);
  // A copy of the whole gradient, in fp32.
  Tensor get(const std::string& name);
  // The buffer that gradients gather in, without a copy.
  Tensor view(const std::string& name);
  // The loss of the open micro batch, for reports; where the caller's gradients are all there is.
  void set_loss(double loss);

  // Around passes whose gradients stay on this rank: the first step after them reduces their sum.
  // Stages 0 and 1; no step is made inside. Every rank calls both.
  void begin_no_sync();
  void end_no_sync();

 private:
  void add_by_bucket(std::span<const nn::ParamId> ids, std::span<const Tensor* const> gradients);
  void add_whole(std::span<const nn::ParamId> ids, std::span<const Tensor* const> gradients);
  void need_whole_gradients();
  void wait_for_readers(std::span<const Tensor* const> gradients);

  RunContext& run_;
  OpenStep& open_;
  ParameterScopes& scopes_;
  const StepGuard& guard_;
};

}  // namespace ds
