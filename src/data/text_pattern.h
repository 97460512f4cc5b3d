// A {"String": s} or {"Regex": r} of a tokenizer.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "data/regex.h"

namespace ds {

class TextPattern {
 public:
  TextPattern(const Json& json, std::string_view what);
  void find_all(std::string_view text, std::vector<MatchRange>& out) const;
  // `text` with every match replaced by `content`.
  std::string replace_all(std::string_view text, std::string_view content) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

}  // namespace ds
