// Where the tensors of a checkpoint go in an engine, and whether they fit.
#pragma once

#include <vector>

#include "base/json.h"
#include "engine/load_options.h"
#include "tensor/tensor.h"

namespace ds {

class CheckpointReader;
class Updater;
struct RunContext;
struct TensorTarget;

// Throws where the checkpoint is not of this model. `overwritten`, by parameter: what a load that
// failed has left without a whole value; empty where none did.
void check_compatible(const RunContext& run, const CheckpointReader& reader,
                      const LoadOptions& options, const std::vector<bool>& overwritten);

// Bytes go straight to the tensor's memory where the host reaches it, else piece by piece.
void aim(TensorTarget& target, const Tensor& memory);

// Where every tensor goes, or what this rank owns of it: to its own memory or, where that is not
// fp32, through its conversion.
struct TargetChoice {
  bool states;     // of the optimizer
  bool gradients;  // of an open step
  Json optimizer;  // what it saved besides tensors
};
std::vector<TensorTarget> restore_targets(RunContext& run, Updater& updater,
                                          const CheckpointReader& reader,
                                          const TargetChoice& choice);

}  // namespace ds
