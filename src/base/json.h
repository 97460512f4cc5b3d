// JSON in and out, wrapping nlohmann::json. Input is hostile: depth, duplicates and UTF-8 are
// checked, and errors carry line and column.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json_reserve.h"

namespace ds {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  int max_depth = 64;
  bool allow_comments = false;
};

// Parses one document. Throws Error(`code`) naming `what` (a file name or a role such as
// "configuration"), the position, and for duplicate keys their JSON path.
Json parse_json(std::string_view text, std::string_view what, Code code,
                const JsonLimits& limits = {});

// Compact or indented text; invalid UTF-8 in strings is replaced, never thrown on.
std::string dump_json(const Json& value, int indent = -1);

}  // namespace ds
