// A {"String": s} or {"Regex": r} of a tokenizer.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizer/regex.h"

namespace ds {

class TextPattern {
 public:
  TextPattern(const Json& json, std::string_view what);
  void find_all(std::string_view text, std::vector<MatchRange>& out, TimeLimit& time) const;
  // `text` with every match replaced by `content`; a result of more than `limit` bytes is an error.
  std::string replace_all(std::string_view text, std::string_view content, size_t limit,
                          TimeLimit& time) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

// What the replacements of a file may make of a text of `bytes`: a damaged or hostile file could
// multiply it at every step.
constexpr size_t replaced_limit(size_t bytes) { return (size_t{16} << 20) + 64 * bytes; }

}  // namespace ds
