// Loading a run: which checkpoint, what it takes over, and what it warns of.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpointed_run.h"
#include "engine/load_options.h"

namespace ds {

class CheckpointReader;
class CheckpointSaver;
class LoadParts;
class LoadProtection;
class ParameterScopes;
struct TensorTarget;

class CheckpointLoader {
 public:
  CheckpointLoader(const CheckpointedRun& of, CheckpointSaver& saver,
                   const ParameterScopes& scopes);

  void load(const std::string& folder, const std::string& tag, const LoadOptions& options);

 private:
  struct Restored;

  void load_newest(const std::string& folder, const LoadOptions& options);
  void restore_tag(const std::string& folder, const std::string& tag, const LoadOptions& options);
  void compare_settings(const CheckpointReader& reader, const LoadOptions& options) const;
  Restored prepare(const CheckpointReader& reader, const LoadOptions& options);
  void prepare_counters(const CheckpointReader& reader, const LoadOptions& options, Restored& out);
  std::optional<LoadProtection> protect(const CheckpointReader& reader, const Restored& restored,
                                        const LoadOptions& options);
  void read_in_turns(const CheckpointReader& reader, LoadParts& parts);
  void read_together(const CheckpointReader& reader, LoadParts& parts,
                     std::optional<LoadProtection>& protection);
  void mark_overwritten(const CheckpointReader& reader);
  void restore(CheckpointReader reader, const LoadOptions& options);
  void restore_gradients(const Restored& restored);
  void restore_counters(Restored restored, const CheckpointReader& reader,
                        const LoadOptions& options);

  RunContext& run_;
  OpenStep& open_;
  Updater& updater_;
  DataFeed& feed_;
  CallerState& caller_;
  CallControl& control_;
  CheckpointSaver& saver_;
  const ParameterScopes& scopes_;
  // Of `progress`, when there was nothing to lose.
  int64_t loaded_steps_ = 0, loaded_micro_steps_ = 0;
  std::vector<bool> overwritten_;  // by parameter: written by a load that has not succeeded yet
};

}  // namespace ds
