// The secret of a job: its codes, and where it comes from.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "comm/sockets/hmac.h"
#include "comm/sockets/job_secret.h"
#include "unit/base/expect_error.h"

namespace ds::testing {
namespace {

using comm::JobSecret;

std::string hex(const comm::Proof& proof) {
  std::string text;
  char digits[3];
  for (const uint8_t byte : proof) {
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    text += digits;
  }
  return text;
}

// RFC 4231, test cases 1 to 3 and 6, whose key is longer than a block of SHA-256; then keys of one
// byte less than a block, of a block, and of one byte more, from Python's hmac.
TEST(JobSecret, HmacSha256MakesTheCodesOfTheStandard) {
  const auto code = [](const std::string& key, const std::string& message) {
    return hex(comm::hmac_sha256(key, message));
  };
  EXPECT_EQ(code(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(code("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(code(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(
      code(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(code(std::string(63, 'k'), "message"),
            "e27efa30bcbfbc25b4d936ffd8553392f398eb2edada1dac2423a961af0c305b");
  EXPECT_EQ(code(std::string(64, 'k'), "message"),
            "890f3a16e0ca0aaa3bf180f70fa8e3970b3fd6505e98fde157988dcc19d1685c");
  EXPECT_EQ(code(std::string(65, 'k'), "message"),
            "0c256505306af48015530c139bb7add5ad7a6a9291cd511278a067e765816fbd");
}

// From Python: hmac.new(key, b"".join(struct.pack("<Q", len(p)) + p for p in parts), "sha256").
TEST(JobSecret, CodesAreHmacSha256) {
  EXPECT_EQ(hex(JobSecret("0123456789abcdef").prove({"a", "bc"})),
            "00bcb13bb73beda1d7547c72acb202cc0a80e8bc0b34350fd3951fc31bcfb20b");
  EXPECT_EQ(hex(JobSecret().prove({""})),
            "f375180aba92888401f1919be4a8715a62763b65c1c10e1d0858e81d4d6f9fd2");
}

TEST(JobSecret, EveryPartCounts) {
  const JobSecret secret("0123456789abcdef"), other("0123456789abcdeg");
  const comm::Proof proof = secret.prove({"role", "nonce"});
  EXPECT_TRUE(comm::same_proof(proof, secret.prove({"role", "nonce"})));
  for (const comm::Proof& wrong :
       {secret.prove({"rolen", "once"}), secret.prove({"nonce", "role"}), secret.prove({"role"}),
        secret.prove({"role", "nonce", ""}), other.prove({"role", "nonce"}),
        JobSecret().prove({"role", "nonce"}), secret.derive({"x"}).prove({"role", "nonce"})}) {
    EXPECT_FALSE(comm::same_proof(proof, wrong));
  }
  EXPECT_NE(comm::new_nonce(), comm::new_nonce());
}

class TokenFile : public ::testing::Test {
 protected:
  TokenFile() {
    char name[] = "/tmp/ds-token-XXXXXX";
    const int file = ::mkstemp(name);
    EXPECT_GE(file, 0);
    ::close(file);
    path_ = name;
  }
  ~TokenFile() override { std::filesystem::remove(path_); }
  void write(const std::string& text, mode_t mode) const {
    std::ofstream(path_) << text;
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
  }
  bool is(const JobSecret& secret, const std::string& token) const {
    return comm::same_proof(secret.prove({"x"}), JobSecret(token).prove({"x"}));
  }
  std::string path_;
};

TEST_F(TokenFile, WhoGivesIt) {
  const std::string a = "aaaaaaaaaaaaaaaaaaaa", b = "bbbbbbbbbbbbbbbbbbbb";
  write(b + "\n", 0600);
  EXPECT_FALSE(comm::find_job_secret({}, {}).given());
  EXPECT_FALSE(comm::find_job_secret({}, {{"DS_JOB_TOKEN", ""}}).given());
  EXPECT_TRUE(is(comm::find_job_secret({}, {{"DS_JOB_TOKEN", a}}), a));
  EXPECT_TRUE(is(comm::find_job_secret({}, {{"DS_JOB_TOKEN_FILE", path_}}), b));
  EXPECT_TRUE(
      is(comm::find_job_secret({}, {{"DS_JOB_TOKEN", a}, {"DS_JOB_TOKEN_FILE", path_}}), a));
  const CommOptions token = parse_comm_options("{\"job_token\": \"" + a + "\"}");
  EXPECT_TRUE(is(comm::find_job_secret(token, {{"DS_JOB_TOKEN", b}}), a));
  const CommOptions file = parse_comm_options("{\"job_token_file\": \"" + path_ + "\"}");
  EXPECT_TRUE(is(comm::find_job_secret(file, {{"DS_JOB_TOKEN", a}}), b));
}

TEST_F(TokenFile, WhatIsNoSecretIsRefused) {
  const auto refused = [](const std::vector<std::string>& parts, const Environment& environment) {
    expect_error(Code::kConfig, parts, [&] { comm::find_job_secret({}, environment); });
  };
  const Environment file = {{"DS_JOB_TOKEN_FILE", path_}};
  const std::string good(64, 'a');
  refused({"DS_JOB_TOKEN has 15 characters", "openssl rand"},
          {{"DS_JOB_TOKEN", "fifteen letters"}});
  for (const mode_t mode : {0640, 0604, 0666, 0620}) {
    write(good, mode);
    refused({path_, "can be read by others", "chmod 600"}, file);
  }
  write(good, 0400);
  EXPECT_TRUE(is(comm::find_job_secret({}, file), good));
  write("  \n", 0600);
  refused({"DS_JOB_TOKEN_FILE has 0 characters"}, file);
  write(std::string(5000, 'a'), 0600);
  refused({"DS_JOB_TOKEN_FILE has"}, file);
  refused({"/nowhere/token cannot be opened"}, {{"DS_JOB_TOKEN_FILE", "/nowhere/token"}});
  refused({"no ordinary file"}, {{"DS_JOB_TOKEN_FILE", "/tmp"}});
  if (::geteuid() == 0) {
    write(good, 0600);
    ASSERT_EQ(::chown(path_.c_str(), 12345, static_cast<gid_t>(-1)), 0);
    refused({"belongs to user 12345"}, file);
  }
}

}  // namespace
}  // namespace ds::testing
