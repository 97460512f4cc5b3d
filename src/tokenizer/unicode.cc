#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"

namespace ds {
namespace {

unsigned byte_at(std::string_view text, size_t pos) {
  return static_cast<unsigned char>(text[pos]);
}

// The allowed range of the second byte and the total length for a lead byte; length 0 if none.
struct Lead {
  uint32_t length;
  unsigned low;
  unsigned high;
};

Lead lead_of(unsigned byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // no code points past U+10FFFF
  return {0, 0, 0};
}

// Bytes of the sequence at `pos` that are well formed so far, at least one; equal to the lead's
// length exactly when the sequence is complete.
uint32_t well_formed_bytes(std::string_view text, size_t pos, const Lead& lead) {
  uint32_t n = 1;
  while (n < lead.length && pos + n < text.size()) {
    const unsigned low = n == 1 ? lead.low : 0x80;
    const unsigned high = n == 1 ? lead.high : 0xBF;
    const unsigned byte = byte_at(text, pos + n);
    if (byte < low || byte > high) break;
    ++n;
  }
  return n;
}

}  // namespace

Utf8Char utf8_at(std::string_view text, size_t pos) {
  const unsigned first = byte_at(text, pos);
  if (first < 0x80) return {first, 1, true};
  const Lead lead = lead_of(first);
  if (lead.length == 0 || well_formed_bytes(text, pos, lead) != lead.length) return {0, 1, false};
  uint32_t code = first & (0xFFu >> (lead.length + 1));
  for (uint32_t i = 1; i < lead.length; ++i) code = (code << 6) | (byte_at(text, pos + i) & 0x3Fu);
  return {code, lead.length, true};
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const Utf8Char c = utf8_at(text, pos);
    if (!c.valid) break;
    pos += c.length;
  }
  return pos;
}

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t pos = 0;
  while (pos < text.size()) {
    const size_t good = valid_utf8_prefix(text.substr(pos));
    out.append(text.substr(pos, good));
    pos += good;
    if (pos == text.size()) break;
    append_utf8(out, 0xFFFD);
    const Lead lead = lead_of(byte_at(text, pos));
    pos += lead.length == 0 ? 1 : well_formed_bytes(text, pos, lead);
  }
  return out;
}

namespace {

// The canonical order of combining marks: every run of characters of a class above 0 is sorted by
// class, stably.
void order_marks(std::vector<utf8proc_int32_t>& codes) {
  const auto class_of = [](utf8proc_int32_t code) {
    return utf8proc_get_property(code)->combining_class;
  };
  const auto is_mark = [&](utf8proc_int32_t code) { return class_of(code) > 0; };
  for (auto begin = std::find_if(codes.begin(), codes.end(), is_mark); begin != codes.end();) {
    const auto end = std::find_if_not(begin, codes.end(), is_mark);
    const auto less = [&](utf8proc_int32_t a, utf8proc_int32_t b) {
      return class_of(a) < class_of(b);
    };
    if (!std::is_sorted(begin, end, less)) std::stable_sort(begin, end, less);
    begin = std::find_if(end, codes.end(), is_mark);
  }
}

}  // namespace

// Not utf8proc_map, which sorts a run of marks by exchanging neighbours: quadratic in its length.
std::string normalize_utf8(std::string_view text, NormalForm form) {
  bool ascii = true;
  for (const char c : text) ascii = ascii && static_cast<signed char>(c) >= 0;
  if (ascii) return std::string(text);  // every form leaves ASCII alone
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  int options = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  const auto known = static_cast<utf8proc_option_t>(options);
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition has 18
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_at(text, pos);
    DS_CHECK(c.valid, Code::kInvalidArgument, "cannot normalise a text of ", text.size(),
             " bytes: it is not UTF-8 at byte ", pos);
    pos += c.length;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code), parts.data(),
                                static_cast<utf8proc_ssize_t>(parts.size()), known, nullptr);
    DS_CHECK(count >= 0 && static_cast<size_t>(count) <= parts.size(), Code::kInvalidArgument,
             "cannot normalise a text of ", text.size(), " bytes: ", utf8proc_errmsg(count));
    codes.insert(codes.end(), parts.begin(), parts.begin() + count);
  }
  order_marks(codes);
  const utf8proc_ssize_t length =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), known);
  DS_CHECK(length >= 0, Code::kInvalidArgument, "cannot normalise a text of ", text.size(),
           " bytes: ", utf8proc_errmsg(length));
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    append_utf8(out, static_cast<uint32_t>(codes[static_cast<size_t>(i)]));
  }
  return out;
}

std::string lowercase_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_at(text, pos);
    pos += c.length;
    if (c.code == 0x130) {
      // The one code point whose full lower case is two code points: i and a combining dot.
      out.append("i\xCC\x87");
    } else {
      append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<int32_t>(c.code))));
    }
  }
  return out;
}

int64_t count_utf8_chars(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

bool is_unicode_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_unicode_word(uint32_t code) {
  // Joiners, and the circled letters that are Alphabetic although symbols.
  if (code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9)) return true;
  if ((code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
      (code >= 0x1F170 && code <= 0x1F189)) {
    return true;
  }
  switch (utf8proc_category(static_cast<int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool is_unicode_punctuation(uint32_t code) {
  switch (utf8proc_category(static_cast<int32_t>(code))) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return true;
    default:
      return false;
  }
}

bool is_unicode_mark(uint32_t code) {
  const auto category = utf8proc_category(static_cast<int32_t>(code));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

bool is_unicode_nonspacing_mark(uint32_t code) {
  return utf8proc_category(static_cast<int32_t>(code)) == UTF8PROC_CATEGORY_MN;
}

bool is_unicode_control(uint32_t code) {
  const auto category = utf8proc_category(static_cast<int32_t>(code));
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_CO;
}

}  // namespace ds
