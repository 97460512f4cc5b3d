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

// What a run's steps need to know of its data.
struct RunData {
  const libds::Dataset* valid;  // null when nothing is validated
  int64_t sequence_length;
  int64_t once;  // samples, where each is read once (dataloader_type "single"); 0: no end
};

class RunLoop {
 public:
  // All of these outlive it. `description` is what is kept beside the metrics.
  RunLoop(const TrainOptions& options, libds::Comm& comm, libds::Engine& engine,
          libds::Model& model, const RunData& data, Json description);

  // From the engine's step to --steps; gives the exit status. Throws Failure when the last save
  // failed.
  int run();

 private:
  void train(SignalWatch& signals, MetricsFile& metrics);
  std::optional<double> validate();
  template <class Fn>
  auto saved_before_failure(const Fn& fn);
  void save();
  void finish_save();
  void save_failed(const libds::Error& error, int64_t step);
  void save_last();
  void save_adapter();
  void agree(SignalWatch& signals);
  std::string exit_asked() const;
  bool due(int64_t interval) const { return interval > 0 && step_ % interval == 0; }

  const TrainOptions& o_;
  libds::Comm& comm_;
  libds::Engine& engine_;
  libds::Model& model_;
  const RunData data_;
  Json description_;
  Progress progress_;
  SignalNews news_;
  bool exits_ = false;       // an option ends the run here
  std::string exit_reason_;  // which, where this process knows
  libds::StepReport report_{};
  int64_t step_;
  int64_t first_step_;  // that the run began at
  int64_t saved_step_ = -1;
  std::optional<int64_t> saving_step_;  // of the save that is under way
  bool decoupled_ = false;              // saves go on beside the training
  std::string save_failure_;            // of the last save, when it failed
};

}  // namespace tool
