// The secret that the ranks of one job share, and how one rank proves to another that it knows it
// without telling it: codes (HMAC-SHA256) of messages in which both sides have put a number that is
// used once. Everything cryptographic of the library is here and in hmac.h; the hash is
// libcrypto's.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "comm/discovery.h"
#include "comm/options.h"

namespace ds::comm {

using Nonce = std::array<uint8_t, 32>;  // used once
using Proof = std::array<uint8_t, 32>;  // a code that only who knows the secret can make

class JobSecret {
 public:
  // None: the same codes with an empty key, which anybody can make.
  JobSecret() = default;
  explicit JobSecret(std::string key) : key_(std::move(key)) {}

  bool given() const noexcept { return !key_.empty(); }
  // The code of these parts in this order; where one ends and the next begins counts, too.
  Proof prove(std::initializer_list<std::string_view> parts) const;
  // A secret for one purpose, from which this one cannot be found.
  JobSecret derive(std::initializer_list<std::string_view> parts) const;

 private:
  std::string key_;
};

// job_token or job_token_file of the options, else DS_JOB_TOKEN or DS_JOB_TOKEN_FILE; none where
// nobody gives one. Throws kConfig for one that is too short, and for a file that cannot be read or
// that others than this user can read.
JobSecret find_job_secret(const CommOptions& options, const Environment& environment);

Nonce new_nonce();
bool same_proof(const Proof& a, const Proof& b);  // in the same time whatever the difference

// The bytes of a plain value, as a part.
template <class T>
std::string_view bytes_of(const T& value) {
  static_assert(std::has_unique_object_representations_v<T>);
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace ds::comm
