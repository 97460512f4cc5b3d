// What an engine says of itself as JSON: its configuration and its memory.
#pragma once

#include "base/json.h"
#include "config/config.h"
#include "engine/step_metrics.h"
#include "models/model.h"

namespace ds {

// {"config", "given", "origins", "warnings"}
Json config_document(const Config& config);

// Bytes by tag, now and at their peak, on the model's device and on the host beside it.
Json memory_report(const models::Model& model, const StepMetrics& metrics);

}  // namespace ds
