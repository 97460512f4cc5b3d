// The step that is open: its micro batches so far, and how far training had come before it. The
// engine owns it; the trainer counts in it, and whatever adds gradients, saves or loads reads it.
#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"
#include "engine/loss_sum.h"
#include "engine/report.h"

namespace ds {

// What callers set for the steps to come: a step that is given up leaves it.
struct StepMode {
  std::optional<bool> boundary;  // whether the next steps update, where the caller says it
  bool no_sync = false;          // gradients stay on this rank
  bool joined = false;      // this rank has no further batches and takes part in those of others
  bool all_joined = false;  // no rank has any
};

struct OpenStep {
  enum class Phase { kIdle, kForwardDone, kBackwardDone };

  // Gradients of the caller may come now; throws kState otherwise.
  void check_takes_gradients() const;
  void check_synced(const char* what) const;
  // Time is measured from the first call on.
  void begin_clock();
  double seconds() const;
  // A micro batch of so many samples, on each of `ranks` ranks; `own` of them are this rank's.
  void count_samples(int64_t each, int64_t ranks, int64_t own);
  // The step has ended.
  void clear_counters();
  // The step did not happen: training is as far as before its first micro batch.
  void rewind();
  // The step is given up.
  void give_up();

  Progress progress;
  // Of the open micro batch.
  Phase phase = Phase::kIdle;
  bool forward_counted = false;         // it went through forward
  std::optional<double> external_loss;  // the caller's
  bool reduction_deferred = false;      // the last backward left its gradients on this rank
  // Of the step.
  int64_t micro_batches = 0;
  int64_t own_micro_batches = 0;  // those that were this rank's own
  LossSum losses;
  // With a teacher, what these are made of: the losses with the labels and with the teacher.
  LossSum label_losses, teacher_losses;
  int64_t tokens = 0;       // counted ones, of this rank
  int64_t samples = 0;      // what progress.samples grew by
  int64_t own_samples = 0;  // of which this rank read so many itself
  // Of the next micro batch, counted from the step's first: with those of the run that saved the
  // step, where a load goes on with it.
  int64_t first_sample = 0;
  std::optional<double> began;
  StepMode mode;
};

// Counts less in `progress`, by what a step had that is given up.
void take_back(Progress& progress, int64_t micro_steps, int64_t samples, int64_t tokens);

// Of several steps each has as many micro batches as the samples before it say
// (rampup_batch_size).
void follow_ramp_up(Config& config, const OpenStep& open);

}  // namespace ds
