// The bytes of a text, for what reads bytes.
#pragma once

#include <span>
#include <string_view>

namespace ds {

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace ds
