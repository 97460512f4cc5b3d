#include "tokenizer/text_pattern.h"

#include <algorithm>

#include "base/json_fields.h"

namespace ds {

TextPattern::TextPattern(const Json& json, std::string_view what) {
  if (const Json* regex = find_field(json, "Regex", what)) {
    regex_.emplace(as_text(*regex, what), what);
  } else {
    literal_ = text_field(json, "String", what);
  }
}

void TextPattern::find_all(std::string_view text, std::vector<MatchRange>& out,
                           TimeLimit& time) const {
  if (regex_) return regex_->find_all(text, out, time);
  if (literal_.empty()) return;
  for (size_t at = text.find(literal_); at != std::string_view::npos;
       at = text.find(literal_, at + literal_.size())) {
    out.push_back({at, at + literal_.size()});
  }
}

std::string TextPattern::replace_all(std::string_view text, std::string_view content, size_t limit,
                                     TimeLimit& time) const {
  std::vector<MatchRange> matches;
  find_all(text, matches, time);
  DS_CHECK(
      content.empty() || matches.size() <= (limit - std::min(limit, text.size())) / content.size(),
      Code::kInvalidArgument, "replacing \"", printable(regex_ ? regex_->pattern() : literal_),
      "\" by ", content.size(), " bytes at ", matches.size(), " places makes a text of ",
      text.size(), " bytes longer than ", limit, "; the tokenizer's Replace steps multiply text");
  std::string out;
  size_t done = 0;
  for (const MatchRange& match : matches) {
    out.append(text.substr(done, match.begin - done)).append(content);
    done = match.end;
  }
  return out.append(text.substr(done));
}

}  // namespace ds
