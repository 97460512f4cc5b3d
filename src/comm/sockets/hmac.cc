#include "comm/sockets/hmac.h"

// OpenSSL 3 deprecates these functions in favour of its providers. Those read the configuration
// file of the machine, leave handlers for the end of the process and of threads in a program that
// only embeds this library, and add 3.8 MB where libcrypto is linked statically. A hash needs none
// of it.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <initializer_list>

#include "base/error.h"

namespace ds::comm {
namespace {

using Digest = std::array<uint8_t, SHA256_DIGEST_LENGTH>;
using Block = std::array<uint8_t, SHA256_CBLOCK>;

Digest sha256(std::initializer_list<std::string_view> parts) {
  Digest digest;
  SHA256_CTX context;
  bool made = ::SHA256_Init(&context) == 1;
  for (const std::string_view part : parts) {
    made = made && ::SHA256_Update(&context, part.data(), part.size()) == 1;
  }
  made = made && ::SHA256_Final(digest.data(), &context) == 1;
  // It holds what was derived from the key.
  ::OPENSSL_cleanse(&context, sizeof(context));
  DS_CHECK(made, Code::kInternal, "libcrypto makes no SHA-256");
  return digest;
}

template <size_t n>
std::string_view text_of(const std::array<uint8_t, n>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), n};
}

}  // namespace

std::array<uint8_t, 32> hmac_sha256(std::string_view key, std::string_view message) {
  Block padded{};
  if (key.size() > padded.size()) {
    const Digest shorter = sha256({key});
    std::copy(shorter.begin(), shorter.end(), padded.begin());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  Block inner, outer;
  for (size_t i = 0; i < padded.size(); ++i) {
    inner[i] = padded[i] ^ 0x36;
    outer[i] = padded[i] ^ 0x5c;
  }
  const Digest inside = sha256({text_of(inner), message});
  const Digest code = sha256({text_of(outer), text_of(inside)});
  for (Block* const block : {&padded, &inner, &outer}) {
    ::OPENSSL_cleanse(block->data(), block->size());
  }
  return code;
}

}  // namespace ds::comm
