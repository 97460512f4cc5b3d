#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <memory>

#include "base/json_fields.h"
#include "tokenizer/bert_classes.h"
#include "tokenizer/text_pattern.h"
#include "tokenizer/unicode.h"

namespace ds {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

using Matches = std::vector<MatchRange>;

// Every character of a class is a match of its own.
template <class Predicate>
auto each_char(Predicate predicate) {
  return [predicate](std::string_view text, Matches& out, TimeLimit&) {
    for (size_t pos = 0; pos < text.size();) {
      const Utf8Char c = utf8_at(text, pos);
      if (predicate(c.code)) out.push_back({pos, pos + c.length});
      pos += c.length;
    }
  };
}

// Runs of word characters, and runs of what is neither word nor blank.
void find_words_and_symbols(std::string_view text, Matches& out, TimeLimit&) {
  enum class Kind { kBlank, kWord, kSymbol };
  Kind last = Kind::kBlank;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_at(text, pos);
    const Kind kind = is_unicode_word(c.code)    ? Kind::kWord
                      : is_unicode_space(c.code) ? Kind::kBlank
                                                 : Kind::kSymbol;
    if (kind != Kind::kBlank && kind == last) {
      out.back().end = pos + c.length;
    } else if (kind != Kind::kBlank) {
      out.push_back({pos, pos + c.length});
    }
    last = kind;
    pos += c.length;
  }
}

auto pattern_finder(const Json& json, std::string_view what) {
  // Shared: the steps of a pipeline can be copied, a compiled pattern cannot.
  return [pattern = std::make_shared<const TextPattern>(json, what)](
             std::string_view text, Matches& out, TimeLimit& time) {
    pattern->find_all(text, out, time);
  };
}

}  // namespace

PreTokenizer::PreTokenizer(const Json& json, std::string_view what) {
  if (!json.is_null()) add(json, what);
}

void PreTokenizer::add_cut(Finder find, Behavior behavior, bool invert) {
  Step step;
  step.find = std::move(find);
  step.behavior = behavior;
  step.invert = invert;
  steps_.push_back(std::move(step));
}

void PreTokenizer::add(const Json& json, std::string_view what) {
  const std::string type = text_field(json, "type", what);
  check_steps(steps_, what);
  if (type == "Sequence") {
    for (const Json& step : array_field(json, "pretokenizers", what)) add(step, what);
    return;
  }
  DS_CHECK(!byte_level_, Code::kUnsupported, what, ": a step \"", printable(type),
           "\" after ByteLevel is not supported; ByteLevel must come last");
  if (type == "ByteLevel") {
    add_byte_level(json, what);
  } else if (type == "Metaspace") {
    add_metaspace(json, what);
  } else if (type == "Split") {
    add_cut(pattern_finder(need_field(json, "pattern", what), what), read_behavior(json, what),
            bool_field(json, "invert", false, what));
  } else if (type == "Digits") {
    add_cut(pattern_finder(Json{{"Regex", "\\p{N}"}}, what),
            bool_field(json, "individual_digits", false, what) ? Behavior::kIsolated
                                                               : Behavior::kContiguous);
  } else if (type == "BertPreTokenizer") {
    add_cut(each_char(is_unicode_space), Behavior::kRemoved);
    add_cut(each_char(is_bert_punctuation), Behavior::kIsolated);
  } else if (type == "Punctuation") {
    const bool given = find_field(json, "behavior", what) != nullptr;
    add_cut(each_char(is_bert_punctuation),
            given ? read_behavior(json, what) : Behavior::kIsolated);
  } else if (type == "Whitespace") {
    add_cut(find_words_and_symbols, Behavior::kRemoved, true);
  } else if (type == "WhitespaceSplit") {
    add_cut(each_char(is_unicode_space), Behavior::kRemoved);
  } else {
    fail(Code::kUnsupported, what, ": the type \"", printable(type),
         "\" is not supported; known are ByteLevel, Metaspace, Split, Digits, BertPreTokenizer, "
         "Punctuation, Whitespace, WhitespaceSplit and Sequence");
  }
}

void PreTokenizer::add_byte_level(const Json& json, std::string_view what) {
  Step step;
  if (bool_field(json, "add_prefix_space", true, what)) {
    step.prefix = Prefix::kAlways;
    step.prefix_text = " ";
  }
  if (bool_field(json, "use_regex", true, what)) {
    step.find = pattern_finder(Json{{"Regex", kGpt2Pattern}}, what);
  }
  steps_.push_back(std::move(step));
  byte_level_ = true;
}

void PreTokenizer::add_metaspace(const Json& json, std::string_view what) {
  Step step;
  step.space = text_field(json, "replacement", what);
  DS_CHECK(!step.space.empty() && utf8_at(step.space, 0).length == step.space.size(),
           Code::kCorrupt, what, ".replacement must be one character, not \"",
           printable(step.space), "\"");
  step.prefix_text = step.space;
  const bool add_prefix = bool_field(json, "add_prefix_space", true, what);
  if (const Json* scheme = find_field(json, "prepend_scheme", what)) {
    const std::string name = as_text(*scheme, what);
    DS_CHECK(name == "always" || name == "first" || name == "never", Code::kUnsupported, what,
             ": unknown prepend_scheme \"", printable(name), "\"");
    step.prefix = name == "always"  ? Prefix::kAlways
                  : name == "first" ? Prefix::kFirst
                                    : Prefix::kNever;
    DS_CHECK(add_prefix || step.prefix == Prefix::kNever, Code::kCorrupt, what,
             ": add_prefix_space false contradicts the prepend_scheme \"", name, "\"");
  } else {
    step.prefix = add_prefix ? Prefix::kAlways : Prefix::kNever;
  }
  if (bool_field(json, "split", true, what)) {
    step.find = pattern_finder(Json{{"String", step.space}}, what);
    step.behavior = Behavior::kMergedWithNext;
  }
  steps_.push_back(std::move(step));
}

PreTokenizer::Behavior PreTokenizer::read_behavior(const Json& json, std::string_view what) {
  const std::string name = text_field(json, "behavior", what);
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  fail(Code::kUnsupported, what, ": unknown behavior \"", printable(name), "\"");
}

void PreTokenizer::cut(const Step& step, const Piece& piece, std::vector<Piece>& out,
                       TimeLimit& time) {
  struct Part {
    MatchRange range;
    bool match;
  };
  const std::string_view text = piece.text;
  Matches matches;
  step.find(text, matches, time);
  std::vector<Part> parts;
  parts.reserve(matches.size() + 1);
  size_t done = 0;
  for (const MatchRange& match : matches) {
    if (done < match.begin) parts.push_back({{done, match.begin}, step.invert});
    parts.push_back({match, !step.invert});
    done = match.end;
  }
  if (done < text.size()) parts.push_back({{done, text.size()}, step.invert});

  std::vector<Part> kept;
  switch (step.behavior) {
    case Behavior::kIsolated:
      kept = std::move(parts);
      break;
    case Behavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.match) kept.push_back(part);
      }
      break;
    case Behavior::kContiguous:
      for (const Part& part : parts) {
        if (!kept.empty() && kept.back().match == part.match) {
          kept.back().range.end = part.range.end;
        } else {
          kept.push_back(part);
        }
      }
      break;
    case Behavior::kMergedWithPrevious: {
      bool after_match = false;
      for (const Part& part : parts) {
        if (part.match && !after_match && !kept.empty()) {
          kept.back().range.end = part.range.end;
        } else {
          kept.push_back(part);
        }
        after_match = part.match;
      }
      break;
    }
    case Behavior::kMergedWithNext: {
      bool before_match = false;
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->match && !before_match && !kept.empty()) {
          kept.back().range.begin = part->range.begin;
        } else {
          kept.push_back(*part);
        }
        before_match = part->match;
      }
      std::reverse(kept.begin(), kept.end());
      break;
    }
  }
  for (const Part& part : kept) {
    const auto [begin, end] = part.range;
    if (end <= begin) continue;
    out.push_back({text.substr(begin, end - begin), piece.begins_text && begin == 0});
  }
}

void PreTokenizer::split(std::string_view text, Place place, Arena& arena,
                         std::vector<std::string_view>& pieces, TimeLimit& time) const {
  if (text.empty()) return;
  std::vector<Piece> current{{text, place.text}}, next;
  const size_t limit = replaced_limit(text.size());
  size_t changed_bytes = 0;
  const auto change = [&](std::string changed) -> std::string_view {
    changed_bytes += changed.size();
    DS_CHECK(changed_bytes <= limit, Code::kInvalidArgument,
             "the tokenizer's pre-tokenizer makes a text of ", text.size(), " bytes longer than ",
             limit, "; its Metaspace and ByteLevel steps multiply text");
    return arena.emplace_back(std::move(changed));
  };
  for (const Step& step : steps_) {
    next.clear();
    for (size_t i = 0; i < current.size(); ++i) {
      Piece piece = current[i];
      if (!step.space.empty() && piece.text.find(' ') != std::string_view::npos) {
        std::string changed;
        for (const char c : piece.text) {
          if (c == ' ') {
            changed += step.space;
          } else {
            changed += c;
          }
        }
        piece.text = change(std::move(changed));
      }
      // In the middle of a stretch (behind ill-formed bytes) there is no place for a prefix.
      const bool wanted = step.prefix == Prefix::kFirst
                              ? piece.begins_text
                              : step.prefix == Prefix::kAlways && (place.segment || i > 0);
      if (wanted && !piece.text.starts_with(step.prefix_text)) {
        piece.text = change(step.prefix_text + std::string(piece.text));
      }
      if (step.find) {
        cut(step, piece, next, time);
      } else {
        next.push_back(piece);
      }
    }
    current.swap(next);
  }
  for (const Piece& piece : current) pieces.push_back(piece.text);
}

}  // namespace ds
