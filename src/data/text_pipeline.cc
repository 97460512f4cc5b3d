#include "data/text_pipeline.h"

#include <algorithm>

#include "data/json_fields.h"

namespace ds {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

std::string replace_all(const TextPattern& pattern, std::string_view text,
                        std::string_view content) {
  std::vector<MatchRange> matches;
  pattern.find_all(text, matches);
  std::string out;
  size_t done = 0;
  for (const MatchRange& match : matches) {
    out.append(text.substr(done, match.begin - done)).append(content);
    done = match.end;
  }
  return out.append(text.substr(done));
}

// The byte of a token <0xNN>, or -1.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

}  // namespace

TextPattern::TextPattern(const Json& json, std::string_view what) {
  if (const Json* regex = find_field(json, "Regex", what)) {
    regex_.emplace(as_text(*regex, what), what);
  } else {
    literal_ = text_field(json, "String", what);
  }
}

void TextPattern::find_all(std::string_view text, std::vector<MatchRange>& out) const {
  if (regex_) return regex_->find_all(text, out);
  if (literal_.empty()) return;
  for (size_t at = text.find(literal_); at != std::string_view::npos;
       at = text.find(literal_, at + literal_.size())) {
    out.push_back({at, at + literal_.size()});
  }
}

Normalizer::Normalizer(const Json& json, std::string_view what) {
  if (!json.is_null()) add(json, what);
}

void Normalizer::add(const Json& json, std::string_view what) {
  const std::string type = text_field(json, "type", what);
  if (type == "Sequence") {
    for (const Json& step : array_field(json, "normalizers", what)) add(step, what);
  } else if (type == "NFC") {
    steps_.push_back(Form{NormalForm::kNfc});
  } else if (type == "NFD") {
    steps_.push_back(Form{NormalForm::kNfd});
  } else if (type == "NFKC") {
    steps_.push_back(Form{NormalForm::kNfkc});
  } else if (type == "NFKD") {
    steps_.push_back(Form{NormalForm::kNfkd});
  } else if (type == "Lowercase") {
    steps_.push_back(Lowercase{});
  } else if (type == "Prepend") {
    steps_.push_back(Prepend{text_field(json, "prepend", what)});
  } else if (type == "Replace") {
    steps_.push_back(Replace{TextPattern(need_field(json, "pattern", what), what),
                             text_field(json, "content", what)});
  } else {
    fail(Code::kUnsupported, what, ": the type \"", printable(type),
         "\" is not supported; known are NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace and "
         "Sequence");
  }
}

std::string Normalizer::apply(std::string_view input) const {
  std::string text(input);
  for (const auto& step : steps_) {
    if (const auto* form = std::get_if<Form>(&step)) {
      text = normalize_utf8(text, form->form);
    } else if (std::holds_alternative<Lowercase>(step)) {
      text = lowercase_utf8(text);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!text.empty()) text.insert(0, prepend->text);
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      text = replace_all(replace->pattern, text, replace->content);
    }
  }
  return text;
}

PreTokenizer::PreTokenizer(const Json& json, std::string_view what) {
  if (!json.is_null()) add(json, what);
}

void PreTokenizer::add(const Json& json, std::string_view what) {
  const std::string type = text_field(json, "type", what);
  if (type == "Sequence") {
    for (const Json& step : array_field(json, "pretokenizers", what)) add(step, what);
    return;
  }
  DS_CHECK(!byte_level_, Code::kUnsupported, what, ": a step \"", printable(type),
           "\" after ByteLevel is not supported; ByteLevel must come last");
  Step step;
  if (type == "ByteLevel") {
    step.add_prefix_space = bool_field(json, "add_prefix_space", true, what);
    if (bool_field(json, "use_regex", true, what)) {
      step.pattern.emplace(Json{{"Regex", kGpt2Pattern}}, what);
    }
    byte_level_ = true;
  } else if (type == "Split") {
    step.pattern.emplace(need_field(json, "pattern", what), what);
    step.invert = bool_field(json, "invert", false, what);
    const std::string behavior = text_field(json, "behavior", what);
    if (behavior == "Isolated") {
      step.behavior = Behavior::kIsolated;
    } else if (behavior == "Removed") {
      step.behavior = Behavior::kRemoved;
    } else if (behavior == "MergedWithPrevious") {
      step.behavior = Behavior::kMergedWithPrevious;
    } else if (behavior == "MergedWithNext") {
      step.behavior = Behavior::kMergedWithNext;
    } else if (behavior == "Contiguous") {
      step.behavior = Behavior::kContiguous;
    } else {
      fail(Code::kUnsupported, what, ": unknown Split behavior \"", printable(behavior), "\"");
    }
  } else if (type == "Digits") {
    step.pattern.emplace(Json{{"Regex", "\\p{N}"}}, what);
    step.behavior = bool_field(json, "individual_digits", false, what) ? Behavior::kIsolated
                                                                       : Behavior::kContiguous;
  } else {
    fail(Code::kUnsupported, what, ": the type \"", printable(type),
         "\" is not supported; known are ByteLevel, Split, Digits and Sequence");
  }
  steps_.push_back(std::move(step));
}

void PreTokenizer::cut(const Step& step, std::string_view text,
                       std::vector<std::string_view>& out) {
  struct Part {
    MatchRange range;
    bool match;
  };
  std::vector<MatchRange> matches;
  step.pattern->find_all(text, matches);
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
    if (part.range.end > part.range.begin) {
      out.push_back(text.substr(part.range.begin, part.range.end - part.range.begin));
    }
  }
}

void PreTokenizer::split(std::string_view text, bool begins, Arena& arena,
                         std::vector<std::string_view>& pieces) const {
  if (text.empty()) return;
  std::vector<std::string_view> current{text}, next;
  for (const Step& step : steps_) {
    next.clear();
    for (size_t i = 0; i < current.size(); ++i) {
      std::string_view piece = current[i];
      if (step.add_prefix_space && !piece.starts_with(' ') && (begins || i > 0)) {
        piece = arena.emplace_back(" " + std::string(piece));
      }
      if (step.pattern) {
        cut(step, piece, next);
      } else {
        next.push_back(piece);
      }
    }
    current.swap(next);
  }
  pieces.insert(pieces.end(), current.begin(), current.end());
}

Decoder::Decoder(const Json& json, std::string_view what) : null_(json.is_null()) {
  if (!null_) add(json, what, true);
}

void Decoder::add(const Json& json, std::string_view what, bool alone) {
  const std::string type = text_field(json, "type", what);
  if (type == "Sequence") {
    const Json& steps = array_field(json, "decoders", what);
    for (const Json& step : steps) add(step, what, alone && steps.size() == 1);
  } else if (type == "ByteLevel") {
    DS_CHECK(alone, Code::kUnsupported, what,
             ": ByteLevel together with other steps is not supported");
    byte_level_ = true;
  } else if (type == "Replace") {
    steps_.push_back(Replace{TextPattern(need_field(json, "pattern", what), what),
                             text_field(json, "content", what)});
  } else if (type == "ByteFallback") {
    steps_.push_back(ByteFallback{});
  } else if (type == "Fuse") {
    steps_.push_back(Fuse{});
  } else if (type == "Strip") {
    Strip strip{text_field(json, "content", what), 0, 0};
    constexpr int64_t kMost = 1 << 20;
    strip.start = static_cast<size_t>(as_integer(need_field(json, "start", what), 0, kMost, what));
    strip.stop = static_cast<size_t>(as_integer(need_field(json, "stop", what), 0, kMost, what));
    steps_.push_back(std::move(strip));
  } else {
    fail(Code::kUnsupported, what, ": the type \"", printable(type),
         "\" is not supported; known are ByteLevel, Replace, ByteFallback, Fuse, Strip and "
         "Sequence");
  }
}

std::string Decoder::apply(std::vector<std::string> tokens) const {
  for (const auto& step : steps_) {
    if (const auto* replace = std::get_if<Replace>(&step)) {
      for (std::string& token : tokens) {
        // Patterns need well-formed text, which bytes after ByteFallback may not be.
        if (is_valid_utf8(token)) token = replace_all(replace->pattern, token, replace->content);
      }
    } else if (std::holds_alternative<ByteFallback>(step)) {
      for (std::string& token : tokens) {
        if (const int byte = fallback_byte(token); byte >= 0) token = static_cast<char>(byte);
      }
    } else if (std::holds_alternative<Fuse>(step)) {
      std::string all;
      for (const std::string& token : tokens) all += token;
      tokens.assign(1, std::move(all));
    } else if (const auto* strip = std::get_if<Strip>(&step); strip && !strip->content.empty()) {
      for (std::string& token : tokens) {
        for (size_t n = 0; n < strip->start && token.starts_with(strip->content); ++n) {
          token.erase(0, strip->content.size());
        }
        for (size_t n = 0; n < strip->stop && token.ends_with(strip->content); ++n) {
          token.resize(token.size() - strip->content.size());
        }
      }
    }
  }
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (null_ && i > 0) out += ' ';
    out += tokens[i];
  }
  return out;
}

}  // namespace ds
