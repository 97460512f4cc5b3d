// Unicode for tokenizers: UTF-8 walking, normalisation forms and the character classes that added
// tokens ask for. The only place that uses utf8proc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ds {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// One step through text: the code point at `pos` and the bytes it takes. An ill-formed byte yields
// valid = false and a length of one.
struct Utf8Char {
  uint32_t code = 0;
  uint32_t length = 0;
  bool valid = false;
};
Utf8Char utf8_at(std::string_view text, size_t pos);

// Bytes of the longest well-formed UTF-8 prefix.
size_t valid_utf8_prefix(std::string_view text);

void append_utf8(std::string& out, uint32_t code);

// Every maximal ill-formed subpart becomes U+FFFD (the rule of the Unicode standard, chapter 3.9).
std::string replace_invalid_utf8(std::string_view text);

// These three take well-formed UTF-8.
std::string normalize_utf8(std::string_view text, NormalForm form);
std::string lowercase_utf8(std::string_view text);
int64_t count_utf8_chars(std::string_view text);

bool is_unicode_space(uint32_t code);            // the White_Space property
bool is_unicode_word(uint32_t code);             // letters, marks, decimal digits, connectors
bool is_unicode_punctuation(uint32_t code);      // general category P
bool is_unicode_mark(uint32_t code);             // general category M
bool is_unicode_nonspacing_mark(uint32_t code);  // general category Mn
bool is_unicode_control(uint32_t code);          // general categories Cc, Cf and Co

}  // namespace ds
