// Text that is JSON but for trailing commas and comments that begin with '#', which people write
// and DeepSpeed reads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ds {

struct JsonLiberty {
  enum class Kind { kTrailingComma, kHashComment };
  Kind kind;
  size_t line, column;  // from 1
};

struct RelaxedJson {
  std::string text;  // strict JSON of the same lines and columns: blanks where a liberty was taken
  std::vector<JsonLiberty> liberties;
};

// Knows strings and the comments // and /* */; what else is wrong is left to the JSON parser.
RelaxedJson relax_json(std::string_view text);

// The document that a caller gave is no JSON but could be a file's name or Base64 text: says so, ""
// when it could not.
std::string explain_no_json(std::string_view text);

}  // namespace ds
