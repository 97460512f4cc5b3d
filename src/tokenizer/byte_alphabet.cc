#include "tokenizer/byte_alphabet.h"

#include "tokenizer/unicode.h"

namespace ds {
namespace {

constexpr int kTop = 256 + 68;  // one past the largest code point of the alphabet

constexpr std::array<uint16_t, 256> make_alphabet() {
  std::array<uint16_t, 256> table{};
  uint16_t next = 256;
  for (unsigned b = 0; b < 256; ++b) {
    const bool printable =
        (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
    table[b] = printable ? static_cast<uint16_t>(b) : next++;
  }
  return table;
}

constexpr std::array<uint16_t, 256> kAlphabet = make_alphabet();

constexpr std::array<int16_t, kTop> make_inverse() {
  std::array<int16_t, kTop> table{};
  for (auto& entry : table) entry = -1;
  for (int b = 0; b < 256; ++b) table[kAlphabet[static_cast<size_t>(b)]] = static_cast<int16_t>(b);
  return table;
}

constexpr std::array<int16_t, kTop> kInverse = make_inverse();

}  // namespace

const std::array<uint16_t, 256>& byte_alphabet() { return kAlphabet; }

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (const char c : bytes) append_utf8(out, kAlphabet[static_cast<unsigned char>(c)]);
  return out;
}

std::optional<std::string> alphabet_to_bytes(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_at(text, pos);
    if (!c.valid || c.code >= kTop || kInverse[c.code] < 0) return std::nullopt;
    out.push_back(static_cast<char>(kInverse[c.code]));
    pos += c.length;
  }
  return out;
}

}  // namespace ds
