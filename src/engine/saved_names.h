// Names of what an engine's checkpoint holds beside the weights: written by checkpoint_saver.cc,
// read by checkpoint_loader.cc, saved_step.cc and restore_targets.cc.
#pragma once

#include <string>

#include "checkpoint/manifest.h"
#include "models/saved_model.h"

namespace ds::saved {

inline constexpr const char* kConfig = "ds_config";
inline constexpr const char* kRateConfig = "rate_config";  // as version 0.4 reads it
inline constexpr const char* kUpdater = "updater";
inline constexpr const char* kSeed = "random.seed";
inline constexpr const char* kClientState = "client_state";
inline constexpr const char* kDataset = "dataset";
// Of the step that was open.
inline constexpr const char* kMicroBatches = "accumulation.micro_batches";
inline constexpr const char* kLossSum = "accumulation.loss_sum";  // mean of the ranks'
inline constexpr const char* kTokens = "accumulation.tokens";     // the same
inline constexpr const char* kLosses = "accumulation.losses";     // in that sum, the same
// With a teacher; sums of the same losses' parts, mean of the ranks'.
inline constexpr const char* kLabelSum = "accumulation.label_loss_sum";
inline constexpr const char* kTeacherSum = "accumulation.teacher_loss_sum";
inline constexpr const char* kSamples = "accumulation.samples";  // of all ranks
// Micro batches of the whole step, where rampup_batch_size and not the configuration says it.
inline constexpr const char* kRampedUp = "accumulation.ramped_up";
inline constexpr const char* kRanks = "accumulation.ranks";  // [{"loss_sum", "tokens", ...}, ...]

inline constexpr const char* kGradientState = "gradient";

// What a tensor is, beside its name.
struct StateKey {
  TensorKind kind;
  std::string state;
};

// The moments of Adam have kinds of their own, all other optimizer state goes by name.
inline StateKey state_key(const std::string& name) {
  if (name == "exp_avg") return {TensorKind::kExpAvg, ""};
  if (name == "exp_avg_sq") return {TensorKind::kExpAvgSq, ""};
  return {TensorKind::kOptimizer, name};
}

inline TensorMeta meta_of(const nn::Parameter& parameter, const StateKey& key) {
  return models::parameter_meta(parameter, key.kind, key.state);
}

}  // namespace ds::saved
