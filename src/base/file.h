// Files: RAII descriptors, whole-file reads, memory maps, durable writes. Every error names the
// path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ds {

// The error of a failed system call: "WHAT PATH WHERE: the system's reason". kNotFound for ENOENT,
// else kIo.
Error errno_error(std::string_view what, const std::filesystem::path& path, int error,
                  std::string_view where = {});
// Throws it for errno.
[[noreturn]] void fail_errno(std::string_view what, const std::filesystem::path& path,
                             std::string_view where = {});

class File {
 public:
  enum class Mode { kRead, kCreate, kAppend };

  File() = default;
  File(const std::filesystem::path& path, Mode mode);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  int64_t size() const;
  // Reads exactly bytes.size() bytes at `offset`; a short file is an error.
  void read_at(int64_t offset, std::span<std::byte> bytes) const;
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  void sync();   // fsync
  void close();  // reports the error that a destructor would have to swallow
  bool is_open() const noexcept { return fd_ >= 0; }
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// A read-only map of a whole file; empty files map to an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Whole file as text; longer than `limit` bytes is an error.
std::string read_text_file(const std::filesystem::path& path, int64_t limit = int64_t{1} << 31);

// Writes `path` so that a crash leaves the old or the new content: temporary file beside it,
// fsync, rename, fsync of the folder.
void write_file_durably(const std::filesystem::path& path, std::string_view content);

// fsync of a folder, which makes renames and new names in it durable.
void sync_folder(const std::filesystem::path& folder);

void make_folders(const std::filesystem::path& path);

}  // namespace ds
