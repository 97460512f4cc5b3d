// What holds between keys: combinations that are errors, and values that follow from others.
#pragma once

#include "config/batch.h"
#include "config/options.h"
#include "config/parse.h"

namespace ds {

// Checks `parsed` (a document of config_table()), lists what is wrong, fills in derived values, and
// returns the batch sizes.
BatchConfig apply_config_rules(ParsedObject& parsed, const ConfigEnvironment& environment,
                               const ReadOptions& options = {});

}  // namespace ds
