// Booleans, numbers and strings against a key: type, range, choices.
#pragma once

#include <string>

#include "config/key_table.h"

namespace ds {

struct ScalarResult {
  Json value;         // in the key's own type and spelling
  std::string error;  // empty on success
};

// `typed`: booleans and numbers may be given as text, as DeepSpeed's typed sections read them.
ScalarResult read_scalar(const Key& key, const Json& value, bool typed = false);

}  // namespace ds
