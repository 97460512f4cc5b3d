// Reads a JSON object against a key table: unknown keys, wrong types, values out of range and
// features that the build lacks are errors with the JSON path; everything absent gets its default.
//
// Paths are JSON pointers (/zero_optimization/stage), so that user-chosen names cannot be mistaken
// for separators.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/key_table.h"

namespace ds {

struct ParseOptions {
  std::string what = "configuration";  // opens every message
  Code code = Code::kConfig;
};

struct ParsedObject {
  Json values;  // every key of the table, in the table's order
  // Path of each value (objects excepted) -> "given", "default", "derived", "deprecated:<path>".
  std::map<std::string, std::string> origins;
  std::vector<std::string> warnings;

  // The value at `path`; null when a section on the way is absent.
  const Json& at(std::string_view path) const;
  // Given by the user, under its own name or a deprecated one.
  bool is_given(const std::string& path) const;
  // Replaces an unset value by what follows from others.
  void derive(const std::string& path, Json value);
  // What derive() computed for values that the user did give: a given value equal to it asks for
  // nothing beyond the default.
  std::map<std::string, Json> derivable;
};

ParsedObject parse_object(const KeyTable& table, const Json& value,
                          const ParseOptions& options = {});

// Throws for the first value that needs a feature this build lacks.
void refuse_lacking(const KeyTable& table, const ParsedObject& parsed,
                    const ParseOptions& options = {});

// One reference token of a JSON pointer (RFC 6901 escaping).
std::string pointer_token(std::string_view name);

// A value as messages show it: compact, cut, printable.
std::string show_value(const Json& value);

}  // namespace ds
