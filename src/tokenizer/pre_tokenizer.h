// The pre-tokenizer of a tokenizer.json: a list of steps that cut text into the pieces that the
// model sees.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizer/regex.h"

namespace ds {

// GPT-2's splitting pattern, which a ByteLevel step applies when use_regex is set.
extern const char* const kGpt2Pattern;

class PreTokenizer {
 public:
  // Text that steps had to change, which pieces point into.
  using Arena = std::deque<std::string>;
  // Where a stretch of text stands.
  struct Place {
    bool segment = true;  // begins a stretch between added tokens
    bool text = true;     // begins the whole text
  };

  PreTokenizer() = default;
  PreTokenizer(const Json& json, std::string_view what);  // null: one piece

  bool byte_level() const noexcept { return byte_level_; }
  // Cuts well-formed UTF-8 into pieces.
  void split(std::string_view text, Place place, Arena& arena,
             std::vector<std::string_view>& pieces, TimeLimit& time) const;

 private:
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  // What is put before a piece that does not begin with it.
  enum class Prefix { kNever, kFirst, kAlways };
  using Finder = std::function<void(std::string_view, std::vector<MatchRange>&, TimeLimit&)>;
  struct Step {
    std::string space;  // Metaspace: spaces become this
    Prefix prefix = Prefix::kNever;
    std::string prefix_text = {};
    Finder find = {};  // empty: does not cut
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  struct Piece {
    std::string_view text;
    bool begins_text;
  };
  void add(const Json& json, std::string_view what);
  void add_byte_level(const Json& json, std::string_view what);
  void add_metaspace(const Json& json, std::string_view what);
  void add_cut(Finder find, Behavior behavior, bool invert = false);
  static Behavior read_behavior(const Json& json, std::string_view what);
  static void cut(const Step& step, const Piece& piece, std::vector<Piece>& out, TimeLimit& time);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace ds
