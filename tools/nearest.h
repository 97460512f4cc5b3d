// What somebody who mistyped an option or a subcommand probably meant.
#pragma once

#include <string>
#include <vector>

#include "cli_fwd.h"

namespace tool {

// The candidate nearest to `name`, "" when none is near enough to be meant.
std::string nearest(const std::string& name, const std::vector<std::string>& candidates);

// Words for the end of "unknown argument WORD": ": did you mean ...?", or where a setting of the
// training belongs; "" when there is no idea. `app` is the program.
std::string hint_for(const CLI::App& app, const std::string& word);

}  // namespace tool
