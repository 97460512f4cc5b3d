// The normalizer of a tokenizer.json: a list of steps that change text before it is cut.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "tokenizer/text_pattern.h"
#include "tokenizer/unicode.h"

namespace ds {

class Normalizer {
 public:
  Normalizer() = default;
  Normalizer(const Json& json, std::string_view what);  // null: leaves text alone

  bool empty() const noexcept { return steps_.empty(); }
  std::string apply(std::string_view text, TimeLimit& time) const;  // well-formed UTF-8

 private:
  struct Limits {
    size_t bytes;  // of the text at any time
    TimeLimit& time;
  };
  // NOLINTBEGIN(performance-unnecessary-value-param): all are called alike, and most change the
  // text
  struct Form {
    NormalForm form;
    std::string apply(std::string text, const Limits&) const { return normalize_utf8(text, form); }
  };
  struct Lowercase {
    std::string apply(std::string text, const Limits&) const { return lowercase_utf8(text); }
  };
  struct StripAccents {  // drops marks; does not decompose
    std::string apply(std::string text, const Limits&) const;
  };
  struct Strip {  // blanks at the ends
    bool left = true;
    bool right = true;
    std::string apply(std::string text, const Limits&) const;
  };
  struct Prepend {
    std::string prefix;
    std::string apply(std::string text, const Limits&) const;
  };
  struct Replace {
    TextPattern pattern;
    std::string content;
    std::string apply(std::string text, const Limits& limits) const {
      return pattern.replace_all(text, content, limits.bytes, limits.time);
    }
  };
  // NOLINTEND(performance-unnecessary-value-param)
  struct Bert {
    bool clean_text = true;
    bool ideographs = true;
    bool strip_accents = true;
    bool lowercase = true;
    std::string apply(std::string text, const Limits&) const;
  };
  using Step = std::variant<Form, Lowercase, StripAccents, Strip, Prepend, Replace, Bert>;
  void add(const Json& json, std::string_view what);

  std::vector<Step> steps_;
};

}  // namespace ds
