// The stages of a tokenizer.json around its model: normalizer, pre-tokenizer, decoder. Each is a
// list of steps read from (and kept as) the JSON of the file.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "data/regex.h"
#include "data/unicode.h"

namespace ds {

// A {"String": s} or {"Regex": r} of the file.
class TextPattern {
 public:
  TextPattern(const Json& json, std::string_view what);
  void find_all(std::string_view text, std::vector<MatchRange>& out) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

class Normalizer {
 public:
  Normalizer() = default;
  Normalizer(const Json& json, std::string_view what);  // null: leaves text alone

  bool empty() const noexcept { return steps_.empty(); }
  std::string apply(std::string_view text) const;  // well-formed UTF-8

 private:
  struct Form {
    NormalForm form;
  };
  struct Lowercase {};
  struct Prepend {
    std::string text;
  };
  struct Replace {
    TextPattern pattern;
    std::string content;
  };
  void add(const Json& json, std::string_view what);

  std::vector<std::variant<Form, Lowercase, Prepend, Replace>> steps_;
};

// GPT-2's splitting pattern, which a ByteLevel step applies when use_regex is set.
extern const char* const kGpt2Pattern;

class PreTokenizer {
 public:
  // Text that steps had to change, which pieces point into.
  using Arena = std::deque<std::string>;

  PreTokenizer() = default;
  PreTokenizer(const Json& json, std::string_view what);  // null: one piece

  bool byte_level() const noexcept { return byte_level_; }
  // Cuts well-formed UTF-8 into pieces; `begins` is false in the middle of a text, where no space
  // is put before it.
  void split(std::string_view text, bool begins, Arena& arena,
             std::vector<std::string_view>& pieces) const;

 private:
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Step {
    bool add_prefix_space = false;
    std::optional<TextPattern> pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  void add(const Json& json, std::string_view what);
  static void cut(const Step& step, std::string_view text, std::vector<std::string_view>& out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

class Decoder {
 public:
  Decoder() = default;
  Decoder(const Json& json, std::string_view what);  // null: tokens with spaces between

  // The whole decoder is the inverse of a ByteLevel pre-tokenizer.
  bool byte_level() const noexcept { return byte_level_; }
  std::string apply(std::vector<std::string> tokens) const;

 private:
  struct Replace {
    TextPattern pattern;
    std::string content;
  };
  struct ByteFallback {};
  struct Fuse {};
  struct Strip {
    std::string content;
    size_t start = 0;
    size_t stop = 0;
  };
  void add(const Json& json, std::string_view what, bool alone);

  std::vector<std::variant<Replace, ByteFallback, Fuse, Strip>> steps_;
  bool byte_level_ = false;
  bool null_ = true;
};

}  // namespace ds
