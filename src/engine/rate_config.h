// What a resumed run's learning rates depend on.
#pragma once

#include "base/json.h"
#include "config/config.h"

namespace ds {

// When these parts of the configuration are unchanged, a resumed run continues with the saved
// learning rate, else with what the new configuration says. The loss scale is a matter of "fp16"
// alone.
inline Json rate_config(const Config& config) {
  const Json& all = config.resolved();
  return {{"optimizer", all.value("optimizer", Json())},
          {"scheduler", all.value("scheduler", Json())},
          {"fp16", all.value("fp16", Json())}};
}

}  // namespace ds
