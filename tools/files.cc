#include "files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "ds.hpp"
#include "failure.h"

namespace tool {
namespace {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

[[noreturn]] void fail_with_errno(const std::string& what, const std::string& path) {
  throw Failure(what + " " + path + ": " + std::strerror(errno));
}

}  // namespace

bool file_exists(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  return !error && std::filesystem::exists(status) && !std::filesystem::is_directory(status);
}

bool folder_exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

std::string read_text(const std::string& path) {
  const bool standard = path == "-";
  const std::string name = standard ? "standard input" : path;
  if (folder_exists(path)) throw Failure("cannot read " + name + ": it is a folder");
  const File owned(standard ? nullptr : std::fopen(path.c_str(), "rb"));
  std::FILE* file = standard ? stdin : owned.get();
  if (file == nullptr) fail_with_errno("cannot open", name);
  std::string text;
  char buffer[1 << 16];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, file)) {
    text.append(buffer, count);
  }
  if (std::ferror(file)) fail_with_errno("cannot read", name);
  return text;
}

void write_text(const std::string& path, std::string_view text) {
  const File file(std::fopen(path.c_str(), "wb"));
  if (!file) fail_with_errno("cannot open", path);
  if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0) {
    fail_with_errno("cannot write", path);
  }
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || !folder_exists(path)) {
    throw Failure("cannot make the folder " + path + ": " +
                  (error ? error.message() : "a file of that name exists"));
  }
}

}  // namespace tool
