// Text helpers: concatenation for messages, and the nearest-name search behind "did you mean".
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace ds {

template <class... Parts>
std::string str_cat(const Parts&... parts) {
  std::ostringstream out;
  out.exceptions(std::ios_base::badbit);  // memory that runs out must not cut the text
  out.imbue(std::locale::classic());
  (out << ... << parts);
  return std::move(out).str();
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
