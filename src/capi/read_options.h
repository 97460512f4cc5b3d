// The part of options documents that says how a configuration is read.
#pragma once

#include <string>
#include <vector>

#include "capi/json_args.h"
#include "config/options.h"

namespace ds::capi {

// The keys of that part, followed by `more`.
std::vector<std::string> read_option_keys(const std::vector<std::string>& more = {});

ReadOptions read_options(const JsonArguments& given);

}  // namespace ds::capi
