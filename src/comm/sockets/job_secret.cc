#include "comm/sockets/job_secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "comm/sockets/hmac.h"

namespace ds::comm {
namespace {

constexpr size_t kShortest = 16, kLongest = 4096;  // characters of a token
constexpr char kAdvice[] = "; `openssl rand -hex 32` makes one";

const std::string* find(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? nullptr : &found->second;
}

JobSecret secret_of(std::string token, const std::string& where) {
  while (!token.empty() && std::strchr(" \t\r\n", token.back()) != nullptr) token.pop_back();
  DS_CHECK(token.size() >= kShortest && token.size() <= kLongest, Code::kConfig, where, " has ",
           token.size(), " characters; the secret of a job has from ", kShortest, " to ", kLongest,
           kAdvice);
  return JobSecret(std::move(token));
}

std::string read_token_file(const std::string& path, const std::string& where) {
  const std::string name = str_cat(where, " ", printable(path, 200));
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  DS_CHECK(file >= 0, Code::kConfig, name, " cannot be opened: ", std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(file, &status) == 0;
  std::string text(kLongest + 64, '\0');
  const ssize_t size =
      known && S_ISREG(status.st_mode) ? ::read(file, text.data(), text.size()) : -1;
  ::close(file);
  DS_CHECK(size >= 0, Code::kConfig, name, " cannot be read, or is no ordinary file");
  DS_CHECK(status.st_uid == ::geteuid(), Code::kConfig, name, " belongs to user ", status.st_uid,
           ", not to ", ::geteuid(), ", who runs this rank: it may be somebody else's secret");
  DS_CHECK((status.st_mode & 077) == 0, Code::kConfig, name,
           " can be read by others; a secret is its owner's alone: chmod 600 it");
  text.resize(static_cast<size_t>(size));
  return text;
}

}  // namespace

Proof JobSecret::prove(std::initializer_list<std::string_view> parts) const {
  std::string message;
  for (const std::string_view part : parts) {
    const uint64_t size = part.size();
    message.append(reinterpret_cast<const char*>(&size), sizeof(size));
    message += part;
  }
  return hmac_sha256(key_, message);
}

JobSecret JobSecret::derive(std::initializer_list<std::string_view> parts) const {
  const Proof key = prove(parts);
  return JobSecret(std::string(bytes_of(key)));
}

JobSecret find_job_secret(const CommOptions& options, const Environment& environment) {
  if (!options.job_token.empty()) return secret_of(options.job_token, "job_token");
  if (!options.job_token_file.empty()) {
    return secret_of(read_token_file(options.job_token_file, "job_token_file"), "job_token_file");
  }
  if (const std::string* const token = find(environment, "DS_JOB_TOKEN")) {
    return secret_of(*token, "DS_JOB_TOKEN");
  }
  if (const std::string* const path = find(environment, "DS_JOB_TOKEN_FILE")) {
    return secret_of(read_token_file(*path, "DS_JOB_TOKEN_FILE"), "DS_JOB_TOKEN_FILE");
  }
  return {};
}

bool same_proof(const Proof& a, const Proof& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Nonce new_nonce() {
  Nonce nonce{};
  for (size_t got = 0; got < nonce.size();) {
    const ssize_t n = ::getrandom(nonce.data() + got, nonce.size() - got, 0);
    DS_CHECK(n > 0 || errno == EINTR, Code::kInternal,
             "the system gives no random numbers: ", std::strerror(errno));
    if (n > 0) got += static_cast<size_t>(n);
  }
  return nonce;
}

}  // namespace ds::comm
