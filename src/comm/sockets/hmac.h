// HMAC-SHA256 (RFC 2104) over libcrypto's SHA-256.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ds::comm {

std::array<uint8_t, 32> hmac_sha256(std::string_view key, std::string_view message);

}  // namespace ds::comm
