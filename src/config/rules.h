// What holds between keys: combinations that are errors, and values that follow from others.
#pragma once

#include "config/batch.h"
#include "config/parse.h"

namespace ds {

struct ConfigEnvironment {
  int64_t data_parallel_size = 1;  // ranks that see different samples
  int64_t world_size = 1;          // all ranks
};

// Checks `parsed` (a document of config_table()), fills in derived values, and returns the batch
// sizes.
BatchConfig apply_config_rules(ParsedObject& parsed, const ConfigEnvironment& environment);

}  // namespace ds
