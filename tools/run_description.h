// What a training run is, beside the record of its steps: OUT.run.json next to OUT.jsonl of
// `ds train --metrics`, for `ds view` and for people.
#pragma once

#include <ctime>
#include <string>

#include "format.h"

namespace tool {

// "runs/a.jsonl" to "runs/a.run.json".
std::string description_path(const std::string& metrics);

// Replaces the file as a whole. What fails is a warning: it ends no training.
void write_run_description(const std::string& metrics, const Json& description);

// "2030-01-31T23:59:59Z"
std::string utc_text(std::time_t time);

}  // namespace tool
