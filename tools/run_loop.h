// `ds train`: the steps of a run, with what happens between them: validation, records, saves,
// signals. What fails beside the training (a save, a record) does not end it; what ends it is saved
// first where that is possible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ds.hpp"
#include "metrics.h"
#include "progress.h"
#include "signals.h"
#include "train_options.h"

namespace tool {

class RunLoop {
 public:
  // All of these outlive it. `valid` is null when nothing is validated. `description` is what is
  // kept beside the metrics.
  RunLoop(const TrainOptions& options, libds::Comm& comm, libds::Engine& engine,
          libds::Model& model, const libds::Dataset* valid, Json description);

  // From the engine's step to --steps; gives the exit status. Throws Failure when the last save
  // failed.
  int run();

 private:
  void train(SignalWatch& signals, MetricsFile& metrics);
  std::optional<double> validate();
  template <class Fn>
  auto saved_before_failure(const Fn& fn);
  void save();
  void settle();
  void save_failed(const libds::Error& error, int64_t step);
  void save_last();
  void save_adapter();
  SignalNews agreed(SignalWatch& signals);
  bool due(int64_t interval) const { return interval > 0 && step_ % interval == 0; }

  const TrainOptions& o_;
  libds::Comm& comm_;
  libds::Engine& engine_;
  libds::Model& model_;
  const libds::Dataset* valid_;
  Json description_;
  Progress progress_;
  SignalNews news_;
  libds::StepReport report_{};
  int64_t step_;
  int64_t saved_step_ = -1;
  std::optional<int64_t> saving_step_;  // of the save that is under way
  bool decoupled_ = false;              // saves go on beside the training
  std::string save_failure_;            // of the last save, when it failed
};

}  // namespace tool
