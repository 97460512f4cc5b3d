// Saving a run: masters and moments by name, and every counter that a bitwise resume needs; at once
// or beside training.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpointed_run.h"
#include "nn/parameter.h"
#include "zero/flat_layout.h"

namespace ds {

class BackgroundSave;
class CheckpointWriter;
class PartHandover;
class PartWriter;
struct CheckpointWriterOptions;
struct StepShare;

class CheckpointSaver {
 public:
  explicit CheckpointSaver(const CheckpointedRun& of);
  ~CheckpointSaver();

  void save(const std::string& folder, const std::string& tag);
  // Waits for a save that goes on in the background; throws what became of it.
  void wait();
  // Before a load: a save of this rank has ended, well or not, and one of several ranks as well.
  void wait_before_load();

  // A loaded run goes on: its checkpoints are of the same run.
  void continue_run(const std::string& id);

 private:
  std::string agreed_tag(const std::string& tag);
  CheckpointWriterOptions writer_options(const std::string& folder, const std::string& tag,
                                         const std::vector<StepShare>& shares);
  zero::FlatRange saved_share(nn::ParamId id) const;
  bool left_out(const nn::Parameter& p) const;
  int64_t expected_bytes();
  void save_tensors(PartWriter& part);
  void save_counters(PartWriter& part, const std::vector<StepShare>& shares);
  void save_beside_training(std::shared_ptr<CheckpointWriter> writer,
                            std::shared_ptr<PartWriter> other,
                            const std::optional<PartHandover>& handover, const std::string& tag);

  RunContext& run_;
  OpenStep& open_;
  Updater& updater_;
  DataFeed& feed_;
  CallerState& caller_;
  CallControl& control_;
  const StepGuard& guard_;
  std::string run_id_;            // of the checkpoints; a loaded run's goes on
  std::string checked_folder_;    // the last one that was searched for those of other runs
  bool saving_together_ = false;  // a save of several ranks may be under way
  std::unique_ptr<BackgroundSave> background_;  // with checkpoint.writer.decoupled
};

}  // namespace ds
