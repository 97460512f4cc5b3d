// The step that was open when a checkpoint was saved: what each rank had of it, and how a run that
// loads it goes on.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/updater.h"

namespace ds {

class CheckpointReader;
struct OpenStep;
struct RunContext;

// What one rank has of the open step.
struct StepShare {
  double loss_sum = 0;
  int64_t tokens = 0;
  int64_t losses = 0;  // in the sum, and in these two
  double label_sum = 0, teacher_sum = 0;
};

// Collective: of all ranks, which a resume with as many ranks gives back to each.
std::vector<StepShare> gather_step_shares(RunContext& run, OpenStep& open);

// As this rank goes on with it.
struct SavedStep {
  int64_t micro_batches = 0;   // 0: there is none
  int64_t samples = 0;         // that random numbers have passed
  double gradient_factor = 1;  // what its gradients are multiplied by
  StepShare share;
};
// `with_states`: gradients are loaded, too. `progress`: of the run until the checkpoint, with the
// tokens of all ranks; then with this rank's, and before the step where that is given up.
SavedStep read_saved_step(const RunContext& run, const CheckpointReader& reader,
                          const Updater::Saved& updater, bool with_states, Progress& progress);

}  // namespace ds
