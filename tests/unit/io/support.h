// What the I/O tests share: a temporary folder, a seed that failures print, random bytes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/backend.h"

namespace ds::io::test {

namespace fs = std::filesystem;

class TempFolder {
 public:
  explicit TempFolder(const fs::path& parent = fs::temp_directory_path()) {
    std::string pattern = (parent / "ds-io-XXXXXX").string();
    const char* made = ::mkdtemp(pattern.data());
    EXPECT_NE(made, nullptr) << pattern;
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

inline void fill_random(std::span<std::byte> out, std::mt19937_64& rng) {
  while (!out.empty()) {
    const uint64_t word = rng();
    const size_t size = std::min(out.size(), sizeof(word));
    std::memcpy(out.data(), &word, size);
    out = out.subspan(size);
  }
}

// Whether this system has what carries blocks out.
inline bool usable(BackendKind kind) { return backend_refusal(kind).empty(); }

// The error that `fn` throws; fails the test when it throws none.
template <class Fn>
Error error_of(const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return {Code::kOk, ""};
}

}  // namespace ds::io::test
