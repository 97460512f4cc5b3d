// The training state of a model, for tests that look behind an engine or train without one.
#pragma once

#include <memory>

#include "models/model.h"
#include "zero/train_state.h"

namespace ds {

// What an engine made of the model's weights. Without an engine one is made and stays attached;
// model.detach_engine() ends it.
inline zero::TrainState& train_state(models::Model& model) {
  if (auto* const state = dynamic_cast<zero::TrainState*>(&model.weights())) return *state;
  const std::shared_ptr<zero::TrainState> made = model.attach_engine<zero::TrainState>();
  made->make(model.context());
  return *made;
}

// A whole fp32 master in place, whoever holds it.
inline Tensor master_of(models::Model& model, nn::ParamId id) {
  model.weights().make(model.context());
  return model.read(model.context(), id);
}

}  // namespace ds
