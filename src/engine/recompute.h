// What the configuration's activation_checkpointing means for a model.
#pragma once

#include "base/error.h"
#include "config/config.h"
#include "models/architecture.h"

namespace ds {

inline models::Recompute recompute_of(const ActivationCheckpointingConfig& config,
                                      const models::ArchitectureInfo& info) {
  models::Recompute recompute;
  if (!config.enabled) return recompute;
  if (!config.checkpoint_every_nth) {
    recompute.segments = config.number_checkpoints.value_or(info.layers);
    return recompute;
  }
  DS_CHECK(*config.checkpoint_every_nth <= info.layers, Code::kConfig,
           "/activation_checkpointing/checkpoint_every_nth is ", *config.checkpoint_every_nth,
           ", but the model has ", info.layers,
           " transformer blocks: none would be recomputed; give a smaller number");
  recompute.every = *config.checkpoint_every_nth;
  return recompute;
}

}  // namespace ds
