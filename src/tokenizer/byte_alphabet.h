// GPT-2's byte alphabet: every byte as one printable character, so that byte strings can be JSON
// keys. Bytes 33-126, 161-172 and 174-255 stand for themselves; the other 68, in ascending order,
// are U+0100 and up.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ds {

// Code point of each byte.
const std::array<uint16_t, 256>& byte_alphabet();

// "hello world" bytes -> "helloĠworld", and back; nullopt when a character is not of the alphabet.
std::string bytes_to_alphabet(std::string_view bytes);
std::optional<std::string> alphabet_to_bytes(std::string_view text);

}  // namespace ds
