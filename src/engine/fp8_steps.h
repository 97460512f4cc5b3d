// What an engine does for linear layers in fp8: makes their scales, updates them after each step,
// and keeps them in checkpoints.
#pragma once

#include <memory>
#include <vector>

#include "engine/run_context.h"
#include "nn/fp8.h"

namespace ds {

class CheckpointReader;
class PartWriter;
struct TensorTarget;

// Throws where the model has no layers that can run in fp8.
std::unique_ptr<nn::Fp8Linears> make_fp8(RunContext& run);

// The rest does nothing for a model without layers in fp8.
// Collective: of all ranks the largest numbers count, so that their scales stay alike.
void agree_on_fp8(RunContext& run);
// Collective: before an update.
void finish_fp8_step(RunContext& run);
void drop_fp8_step(RunContext& run);

// Scales and what they follow from, alike on all ranks.
void save_fp8(RunContext& run, PartWriter& part);
// What a checkpoint holds of one layer, for restore_fp8; none where the layer begins anew.
struct SavedFp8 {
  nn::ParamId id;
  Tensor state;
};
// Adds the places where a load is to put the layers' scales to `targets`.
std::vector<SavedFp8> fp8_targets(RunContext& run, const CheckpointReader& reader,
                                  std::vector<TensorTarget>& targets);
void restore_fp8(RunContext& run, const std::vector<SavedFp8>& saved);

}  // namespace ds
