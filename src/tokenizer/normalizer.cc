#include "tokenizer/normalizer.h"

#include "base/json_fields.h"
#include "tokenizer/bert_classes.h"

namespace ds {
namespace {

// Rebuilds text from what fn appends for each character.
template <class Fn>
std::string map_chars(std::string_view text, const Fn& fn) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_at(text, pos);
    fn(c.code, text.substr(pos, c.length), out);
    pos += c.length;
  }
  return out;
}

}  // namespace

Normalizer::Normalizer(const Json& json, std::string_view what) {
  if (!json.is_null()) add(json, what);
}

void Normalizer::add(const Json& json, std::string_view what) {
  const std::string type = text_field(json, "type", what);
  check_steps(steps_, what);
  if (type == "Sequence") {
    for (const Json& step : array_field(json, "normalizers", what)) add(step, what);
  } else if (type == "NFC") {
    steps_.emplace_back(Form{NormalForm::kNfc});
  } else if (type == "NFD") {
    steps_.emplace_back(Form{NormalForm::kNfd});
  } else if (type == "NFKC") {
    steps_.emplace_back(Form{NormalForm::kNfkc});
  } else if (type == "NFKD") {
    steps_.emplace_back(Form{NormalForm::kNfkd});
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "StripAccents") {
    steps_.emplace_back(StripAccents{});
  } else if (type == "Strip") {
    steps_.emplace_back(Strip{bool_field(json, "strip_left", true, what),
                              bool_field(json, "strip_right", true, what)});
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{text_field(json, "prepend", what)});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{TextPattern(need_field(json, "pattern", what), what),
                                text_field(json, "content", what)});
  } else if (type == "BertNormalizer") {
    Bert bert;
    bert.clean_text = bool_field(json, "clean_text", true, what);
    bert.ideographs = bool_field(json, "handle_chinese_chars", true, what);
    bert.lowercase = bool_field(json, "lowercase", true, what);
    // Absent or null: accents go with the case.
    bert.strip_accents = bool_field(json, "strip_accents", bert.lowercase, what);
    steps_.emplace_back(bert);
  } else {
    fail(Code::kUnsupported, what, ": the type \"", printable(type),
         "\" is not supported; known are NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, "
         "Prepend, Replace, BertNormalizer and Sequence");
  }
}

std::string Normalizer::apply(std::string_view input, TimeLimit& time) const {
  const Limits limits{replaced_limit(input.size()), time};
  std::string text(input);
  for (const Step& step : steps_) {
    text =
        std::visit([&](const auto& known) { return known.apply(std::move(text), limits); }, step);
  }
  return text;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): as normalizer.h says
std::string Normalizer::StripAccents::apply(std::string text, const Limits&) const {
  return map_chars(text, [](uint32_t code, std::string_view bytes, std::string& out) {
    if (!is_unicode_mark(code)) out += bytes;
  });
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): as normalizer.h says
std::string Normalizer::Strip::apply(std::string text, const Limits&) const {
  size_t begin = text.size(), end = 0;  // of what is not blank
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_at(text, pos);
    if (!is_unicode_space(c.code)) {
      begin = std::min(begin, pos);
      end = pos + c.length;
    }
    pos += c.length;
  }
  if (end == 0) return left || right ? std::string() : text;
  if (!left) begin = 0;
  if (!right) end = text.size();
  return text.substr(begin, end - begin);
}

std::string Normalizer::Prepend::apply(std::string text, const Limits&) const {
  if (!text.empty()) text.insert(0, prefix);
  return text;
}

std::string Normalizer::Bert::apply(std::string text, const Limits&) const {
  text = map_chars(text, [this](uint32_t code, std::string_view bytes, std::string& out) {
    if (clean_text) {
      if (code == 0 || code == 0xFFFD || is_bert_control(code)) return;
      if (is_unicode_space(code)) bytes = " ";
    }
    if (ideographs && is_bert_ideograph(code)) {
      out.append(" ").append(bytes).append(" ");
    } else {
      out += bytes;
    }
  });
  if (strip_accents) {
    text = map_chars(normalize_utf8(text, NormalForm::kNfd),
                     [](uint32_t code, std::string_view bytes, std::string& out) {
                       if (!is_bert_nonspacing_mark(code)) out += bytes;
                     });
  }
  return lowercase ? lowercase_utf8(text) : text;
}

}  // namespace ds
