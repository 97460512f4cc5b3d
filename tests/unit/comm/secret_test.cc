// The secret of a job: its codes, and where it comes from.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

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
