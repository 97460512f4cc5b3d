// Text helpers: concatenation for messages, and the nearest-name search behind "did you mean".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace ds {

// A part of a message: text, which it does not own, or a number as a std::ostream of the C locale
// writes it. Constructors are no templates: messages have thousands of combinations of types, and
// what is instantiated for each is compiled for each.
class TextPart {
 public:
  TextPart(std::string_view text) : kind_(Kind::kText), text_(text) {}
  TextPart(const std::string& text) : TextPart(std::string_view(text)) {}
  TextPart(const char* text) : TextPart(std::string_view(text == nullptr ? "(null)" : text)) {}
  TextPart(char value) : kind_(Kind::kCharacter), character_(value) {}
  TextPart(bool value) : TextPart(static_cast<long long>(value)) {}
  TextPart(int value) : TextPart(static_cast<long long>(value)) {}
  TextPart(long value) : TextPart(static_cast<long long>(value)) {}
  TextPart(long long value) : kind_(Kind::kSigned), signed_(value) {}
  TextPart(unsigned value) : TextPart(static_cast<unsigned long long>(value)) {}
  TextPart(unsigned long value) : TextPart(static_cast<unsigned long long>(value)) {}
  TextPart(unsigned long long value) : kind_(Kind::kUnsigned), unsigned_(value) {}
  TextPart(double value) : kind_(Kind::kReal), real_(value) {}
  TextPart(const void* value) : kind_(Kind::kAddress), address_(value) {}

  void append_to(std::string& out) const;

 private:
  enum class Kind : uint8_t { kText, kCharacter, kSigned, kUnsigned, kReal, kAddress };
  Kind kind_;
  union {
    std::string_view text_;
    char character_;
    long long signed_;
    unsigned long long unsigned_;
    double real_;
    const void* address_;
  };
};

std::string join_parts(std::initializer_list<TextPart> parts);

template <class... Parts>
std::string str_cat(const Parts&... parts) {
  return join_parts({TextPart(parts)...});
}

// Damerau-Levenshtein distance (optimal string alignment), case-insensitive for ASCII.
int edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to `name`, or "" when none is close enough to be a plausible typo.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

// Text made safe for a one-line message: control characters and invalid UTF-8 as \xNN, cut to
// `limit` bytes with an ellipsis.
std::string printable(std::string_view text, size_t limit = 80);

// True when the bytes are well-formed UTF-8.
bool is_valid_utf8(std::string_view text);

std::string join(const std::vector<std::string>& parts, std::string_view separator);
bool starts_with_ignore_case(std::string_view text, std::string_view prefix);
std::string to_lower_ascii(std::string_view text);

// Shortest decimal text that reads back as the same double (integers without a point).
std::string format_number(double value);

// "1.5 GiB" style.
std::string format_bytes(int64_t bytes);

}  // namespace ds
