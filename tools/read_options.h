// How the command line wants a DeepSpeed configuration to be read: --set, --auto, --resolve-auto,
// --lenient. What they mean is the library's.
#pragma once

#include <string>
#include <vector>

#include "cli_fwd.h"
#include "format.h"

namespace tool {

struct ReadOptions {
  std::vector<std::string> set;     // KEY=VALUE
  std::vector<std::string> values;  // KEY=VALUE, of "auto"
  bool resolve_auto = false;
  bool lenient = false;
};

void add_read_options(CLI::App& sub, ReadOptions& options, const std::string& group = "Options");

// The options document of the library: "set", and where asked for "resolve_auto" and "lenient".
Json read_options_document(const ReadOptions& options);

// A value for the key if "auto" is resolved; what --auto says wins.
void add_auto_value(Json& document, const char* key, Json value);

// What is wrong with a configuration, as ds_config_check lists it, a line each.
std::string list_problems(const Json& check);

}  // namespace tool
