// JSON documents of a checkpoint, as far as they are there.
#pragma once

#include "base/json.h"
#include "checkpoint/reader.h"

namespace ds {

// Null without it.
inline Json json_member(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object.at(key) : Json();
}

// A document that the checkpoint may lack; null then.
inline Json saved_json(const CheckpointReader& reader, const char* name) {
  return reader.has_state(name) ? reader.state_json(name) : Json();
}

}  // namespace ds
