// What checkpoints carry for the caller, beside the training state.
#pragma once

#include <memory>

#include "base/json.h"
#include "engine/saved_blobs.h"

namespace ds {

class Tokenizer;

struct CallerState {
  std::shared_ptr<const Tokenizer> tokenizer;
  Json client_state;
  SavedBlobs blobs;  // bytes by name
};

}  // namespace ds
