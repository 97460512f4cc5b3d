// Shared by tests of data and tokenizers: a temporary folder, fresh random seeds, and the check for
// ds::Error.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/token_source.h"
#include "test_paths.h"

namespace ds {

// Files of the tests' tokenizers.
inline std::filesystem::path golden(const std::string& name) {
  return test_data() / "tokenizers" / name;
}

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "ds_data_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good());
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string seed_text(uint64_t seed) { return "seed " + std::to_string(seed); }

inline std::string random_bytes(std::mt19937& random, size_t length) {
  std::string out(length, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

// Runs fn, which must throw a ds::Error with this code whose text holds every part.
template <class Fn>
void expect_error(Code code, std::initializer_list<std::string_view> parts, const Fn& fn) {
  try {
    fn();
    ADD_FAILURE() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    for (const std::string_view part : parts) {
      EXPECT_NE(error.message().find(part), std::string::npos)
          << "\"" << part << "\" is not in: " << error.message();
    }
  }
}

// Of all sequences.
inline int64_t tokens_of(const TokenSource& source) {
  int64_t total = 0;
  for (int64_t i = 0; i < source.sequence_count(); ++i) total += source.sequence_size(i);
  return total;
}

}  // namespace ds
