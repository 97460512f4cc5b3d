#include "tokenizer/decoder.h"

#include <algorithm>
#include <array>

#include "base/json_fields.h"

namespace ds {
namespace {

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

std::string replace_text(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
  }
  return out.append(text.substr(done));
}

// Takes back the blanks that cutting English text put before punctuation and short forms.
std::string clean_up(std::string text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules = {{
      {" .", "."},
      {" ?", "?"},
      {" !", "!"},
      {" ,", ","},
      {" ' ", "'"},
      {" n't", "n't"},
      {" 'm", "'m"},
      {" do not", " don't"},
      {" 's", "'s"},
      {" 've", "'ve"},
      {" 're", "'re"},
  }};
  for (const auto& [from, to] : kRules) {
    if (text.find(from) != std::string::npos) text = replace_text(text, from, to);
  }
  return text;
}

}  // namespace

Decoder::Decoder(const Json& json, std::string_view what) : null_(json.is_null()) {
  if (!null_) add(json, what, true);
}

void Decoder::add(const Json& json, std::string_view what, bool alone) {
  const std::string type = text_field(json, "type", what);
  check_steps(steps_, what);
  if (type == "Sequence") {
    const Json& steps = array_field(json, "decoders", what);
    for (const Json& step : steps) add(step, what, alone && steps.size() == 1);
  } else if (type == "ByteLevel") {
    DS_CHECK(alone, Code::kUnsupported, what,
             ": ByteLevel together with other steps is not supported");
    byte_level_ = true;
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{TextPattern(need_field(json, "pattern", what), what),
                                text_field(json, "content", what)});
  } else if (type == "ByteFallback") {
    steps_.emplace_back(ByteFallback{});
  } else if (type == "Fuse") {
    steps_.emplace_back(Fuse{});
  } else if (type == "Strip") {
    Strip strip{text_field(json, "content", what), 0, 0};
    constexpr int64_t kMost = 1 << 20;
    strip.start = static_cast<size_t>(as_integer(need_field(json, "start", what), 0, kMost, what));
    strip.stop = static_cast<size_t>(as_integer(need_field(json, "stop", what), 0, kMost, what));
    steps_.emplace_back(std::move(strip));
  } else if (type == "Metaspace") {
    Metaspace metaspace{text_field(json, "replacement", what), true};
    DS_CHECK(!metaspace.replacement.empty(), Code::kCorrupt, what, ".replacement is empty");
    const Json* const scheme = find_field(json, "prepend_scheme", what);
    metaspace.drop_first = scheme != nullptr ? as_text(*scheme, what) != "never"
                                             : bool_field(json, "add_prefix_space", true, what);
    steps_.emplace_back(std::move(metaspace));
  } else if (type == "WordPiece") {
    steps_.emplace_back(
        WordPiece{text_field(json, "prefix", what), bool_field(json, "cleanup", true, what)});
  } else {
    fail(Code::kUnsupported, what, ": the type \"", printable(type),
         "\" is not supported; known are ByteLevel, Replace, ByteFallback, Fuse, Strip, "
         "Metaspace, WordPiece and Sequence");
  }
}

// Tokens are many and short: they are turned into text some thousands at a time, until a Fuse step
// wants to see them all.
std::string Decoder::apply(size_t count, const TokenAt& token) const {
  constexpr size_t kAtOnce = 4096;
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes += token(i).size();
  TimeLimit time(bytes);
  const size_t most = replaced_limit(bytes);
  const auto fuse = std::find_if(steps_.begin(), steps_.end(), [](const auto& step) {
    return std::holds_alternative<Fuse>(step);
  });
  std::string out;
  Tokens tokens;
  for (size_t begin = 0; begin < count; begin += kAtOnce) {
    tokens.clear();
    for (size_t i = begin; i < std::min(count, begin + kAtOnce); ++i) tokens.emplace_back(token(i));
    const Limits limits{most, time, begin == 0};
    for (auto step = steps_.begin(); step != fuse; ++step) {
      std::visit([&](const auto& known) { known.apply(tokens, limits); }, *step);
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (null_ && begin + i > 0) out += ' ';
      out += tokens[i];
    }
    DS_CHECK(out.size() <= most, Code::kInvalidArgument, "decoding makes a text of ", bytes,
             " bytes longer than ", most, "; the tokenizer's Replace steps multiply text");
  }
  if (fuse == steps_.end()) return out;
  tokens.assign(1, out);
  const Limits limits{most, time, true};
  for (auto step = fuse + 1; step != steps_.end(); ++step) {
    std::visit([&](const auto& known) { known.apply(tokens, limits); }, *step);
  }
  return std::move(tokens.front());
}

void Decoder::Replace::apply(Tokens& tokens, Limits limits) const {
  for (std::string& token : tokens) {
    // Patterns need well-formed text, which bytes after ByteFallback may not be.
    if (is_valid_utf8(token))
      token = pattern.replace_all(token, content, limits.bytes, limits.time);
    limits.bytes -= std::min(limits.bytes, token.size());
  }
}

void Decoder::ByteFallback::apply(Tokens& tokens, Limits) const {
  for (std::string& token : tokens) {
    if (const int byte = fallback_byte(token); byte >= 0) token = static_cast<char>(byte);
  }
}

void Decoder::Fuse::apply(Tokens& tokens, Limits) const {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens.assign(1, all);
}

void Decoder::Strip::apply(Tokens& tokens, Limits) const {
  if (content.empty()) return;
  for (std::string& token : tokens) {
    std::string_view rest = token;
    for (size_t n = 0; n < start && rest.starts_with(content); ++n) {
      rest.remove_prefix(content.size());
    }
    for (size_t n = 0; n < stop && rest.ends_with(content); ++n) {
      rest.remove_suffix(content.size());
    }
    if (rest.size() < token.size()) token = std::string(rest);
  }
}

void Decoder::Metaspace::apply(Tokens& tokens, Limits limits) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] =
        replace_text(tokens[i], replacement, limits.begins && i == 0 && drop_first ? "" : " ");
  }
}

void Decoder::WordPiece::apply(Tokens& tokens, Limits limits) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string& token = tokens[i];
    const bool first = limits.begins && i == 0;
    if (!first && token.starts_with(prefix)) {
      token.erase(0, prefix.size());
    } else if (!first) {
      token.insert(token.begin(), ' ');
    }
    if (cleanup) token = clean_up(std::move(token));
  }
}

}  // namespace ds
