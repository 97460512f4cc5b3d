// Models that `ds bench --model` knows by name, so that speeds can be compared without a file.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tool {

std::vector<std::string> bench_model_names();
// The model's config.json; nothing for another name.
std::optional<std::string> bench_model(const std::string& name);

}  // namespace tool
