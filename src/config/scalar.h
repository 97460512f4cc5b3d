// Booleans, numbers and strings against a key: type, range, choices.
#pragma once

#include <string>

#include "config/key_table.h"

namespace ds {

struct ScalarResult {
  Json value;         // in the key's own type and spelling
  std::string error;  // empty on success
};

ScalarResult read_scalar(const Key& key, const Json& value);

}  // namespace ds
