// What the fuzz targets share: numbers and text taken from the input, claims that end the process
// when they do not hold, and a folder in memory for parsers that read only files.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

// Called once per input. Every target defines it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace ds::fuzz {

// Numbers beyond 64 bits, for computations that must not overflow themselves.
__extension__ typedef __int128 Wide;

[[noreturn]] inline void violated(std::string_view property, std::string_view detail) {
  std::cerr << "violated: " << property << (detail.empty() ? "" : ": ") << detail << std::endl;
  std::abort();
}

// A property of the code under test; a violation is a finding like a crash.
inline void claim(bool holds, std::string_view property, std::string_view detail = {}) {
  if (!holds) violated(property, detail);
}

// Whether `parse` takes its input. A parser may refuse with ds::Error and nothing else: any other
// exception leaves the target and ends the process.
template <class Parse>
bool accepts(const Parse& parse) {
  try {
    parse();
    return true;
  } catch (const Error& error) {
    claim(error.code() != Code::kInternal && error.code() != Code::kOk,
          "bad input is no internal error", error.message());
    claim(is_valid_utf8(error.message()), "messages are UTF-8", error.message());
    return false;
  }
}

// What must succeed, because the input was accepted before.
template <class Use>
void must_succeed(std::string_view property, const Use& use) {
  try {
    use();
  } catch (const Error& error) {
    claim(false, property, error.message());
  }
}

// Takes values from the front of the input; past its end everything is zero.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  template <class T>
  T take() {
    T value{};
    const size_t n = std::min(sizeof(T), rest_.size());
    if constexpr (std::is_same_v<T, bool>) {  // which has two values only
      value = n > 0 && (rest_[0] & 1) != 0;
    } else if (n > 0) {
      std::memcpy(&value, rest_.data(), n);
    }
    rest_.remove_prefix(n);
    return value;
  }
  std::string_view take_text(size_t size) {
    const std::string_view out = rest_.substr(0, size);
    rest_.remove_prefix(out.size());
    return out;
  }
  // Up to `end`, which is dropped; all of it when there is none.
  std::string_view take_until(char end) {
    const std::string_view out = rest_.substr(0, rest_.find(end));
    rest_.remove_prefix(std::min(rest_.size(), out.size() + 1));
    return out;
  }
  std::string_view rest() const { return rest_; }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

inline std::span<const std::byte> as_byte_span(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A folder of this process, removed at its end. DS_FUZZ_TMP names where; the default is memory.
class Folder {
 public:
  Folder() {
    namespace fs = std::filesystem;
    std::error_code ignored;
    const char* chosen = std::getenv("DS_FUZZ_TMP");
    fs::path base = chosen != nullptr ? fs::path(chosen) : fs::path("/dev/shm");
    if (!fs::is_directory(base, ignored)) base = fs::temp_directory_path();
    std::string name = (base / "ds-fuzz-XXXXXX").string();
    claim(mkdtemp(name.data()) != nullptr, "a folder for files can be made", name);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path put(const std::string& name, std::string_view content) const {
    const std::filesystem::path file = path_ / name;
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    claim(out.good(), "files can be written", file.string());
    return file;
  }
  // Removes what lies in the folder.
  void clear() const {
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      std::filesystem::remove_all(entry.path());
    }
  }

 private:
  std::filesystem::path path_;
};

// One per process, made on first use.
inline const Folder& folder() {
  static const Folder instance;
  return instance;
}

// Warnings about hostile input are part of the contract, not of the output.
inline void be_quiet() {
  static const bool done = [] {
    log_set_level(LogLevel::kOff);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace ds::fuzz
