// Reads a JSON object against a key table: unknown keys, wrong types, values out of range and
// features that the build lacks are errors with the JSON path; everything absent gets its default.
//
// Paths are JSON pointers (/zero_optimization/stage), so that user-chosen names cannot be mistaken
// for separators.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/key_table.h"
#include "config/problem.h"

namespace ds {

class AutoResolver;

// Problems beyond these are not looked for.
inline constexpr size_t kMostProblems = 100;

struct ParseOptions {
  std::string what = "configuration";  // opens every message
  Code code = Code::kConfig;
  bool collect = false;  // problems are listed in the result instead of the first being thrown
  bool lenient = false;  // pass over comment keys, and unknown keys where tables allow it
  const AutoResolver* resolver = nullptr;  // what "auto" becomes
};

struct ParsedObject {
  Json values;  // every key of the table, in the table's order
  // Path of each value (objects excepted) -> "given", "default", "derived", "auto", "set",
  // "deprecated:<path>".
  std::map<std::string, std::string> origins;
  std::vector<std::string> warnings;
  std::vector<ConfigProblem> problems;  // in the order in which they are found
  std::set<std::string> failed;         // canonical paths of values that a problem left at default
  std::set<std::string> given_objects;  // canonical paths of objects that stand in the document
  std::set<std::string> auto_paths;     // of values that were "auto" and stay at default or derived

  // Lists a problem unless its place has one already.
  void add(ConfigProblem problem);
  // True when the value at the path, or of a section around it, was not accepted.
  bool has_failed(std::string_view path) const;

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

// Values that need a feature this build lacks: the first is thrown, or all are listed.
void refuse_lacking(const KeyTable& table, ParsedObject& parsed, const ParseOptions& options = {});

// One reference token of a JSON pointer (RFC 6901 escaping).
std::string pointer_token(std::string_view name);
std::string unescape_pointer_token(std::string_view token);

// A value as messages show it: compact, cut, printable.
std::string show_value(const Json& value);

}  // namespace ds
