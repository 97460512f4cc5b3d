// Training a model step by step: micro batches until a boundary, then the update and its report;
// and the micro batches of a rank that has no further data.
#pragma once

#include <memory>
#include <optional>

#include "engine/micro_batch.h"
#include "engine/model_passes.h"
#include "engine/product_timing.h"
#include "engine/report.h"

namespace ds {

class ParameterScopes;
class StepGuard;
struct StepTotals;

class Trainer {
 public:
  Trainer(RunContext& run, OpenStep& open, StepObserver& observer, ParameterScopes& scopes,
          Updater& updater, const StepGuard& guard);

  Tensor forward(const MicroBatch& batch);
  void backward(const Tensor& loss);
  StepReport step();

  // One whole micro batch; the report when it completes a step.
  std::optional<StepReport> run_micro_batch(const MicroBatch& samples);

  // For a rank that has no further batches: takes part in the steps of the others, without adding
  // to them, until no rank has one. Every rank calls it in the end.
  //
  // It takes the steps before it knows whether anybody still trains; the totals that every step
  // exchanges tell how many micro batches there were, and a step without any ends the joining.
  void join();

  // Gives up the open step, so that the weights stay as after the last update.
  void drop_open_step();

  // Whether the next steps update, whatever gradient_accumulation_steps says; none: as it says.
  void set_boundary(std::optional<bool> boundary);

  // Before the engine's memory goes.
  void end_passes();

 private:
  void run_passes(const MicroBatch& samples);
  bool run_graph(const models::Batch& batch, const Tensor& labels);
  void run_forward(models::Batch batch, const Tensor& labels);
  void run_backward();
  void run_empty_batch();
  StepReport finish_micro_batch();
  bool close_micro_batch(bool reduce = true);
  bool at_boundary() const;
  bool last_backward_is_next() const;
  StepReport finish_step();
  StepReport apply_update();
  void complete(StepReport& report, const StepTotals& totals);
  StepReport end_joining();
  void check_all_have_gradients();
  void warn_of_uncounted_labels(const StepTotals& totals);

  RunContext& run_;
  OpenStep& open_;
  StepObserver& observer_;
  ParameterScopes& scopes_;
  Updater& updater_;
  const StepGuard& guard_;
  ProductTiming product_timing_;
  std::unique_ptr<ModelPasses> passes_;
  bool warned_uncounted_ = false;
};

}  // namespace ds
