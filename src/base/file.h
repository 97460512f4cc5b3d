// Files: RAII descriptors, whole-file reads, durable writes. Every error names the path and the
// system's reason. Nothing maps a file: one that another program cuts short while it is read must
// be an error, and a map makes it a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  enum class Mode {
    kRead,
    kReadRegular,  // and refuses folders, pipes and devices
    kCreate,
    kNew,  // nothing of that name may be there, not even a link
    kAppend,
  };

  File() = default;
  File(const std::filesystem::path& path, Mode mode);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  int64_t size() const;
  // Reads exactly bytes.size() bytes at `offset`; a short file is kCorrupt, and the error says what
  // size it has.
  void read_at(int64_t offset, std::span<std::byte> bytes) const;
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  void sync();   // fsync
  void close();  // reports the error that a destructor would have to swallow
  bool is_open() const noexcept { return fd_ >= 0; }
  int fd() const noexcept { return fd_; }
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// Whole file as text; longer than `limit` bytes is an error.
std::string read_text_file(const std::filesystem::path& path, int64_t limit = int64_t{1} << 31);

// Writes `path` so that a crash leaves the old or the new content: see ReplacementFile.
void write_file_durably(const std::filesystem::path& path, std::string_view content);

// fsync of a folder, which makes renames and new names in it durable.
void sync_folder(const std::filesystem::path& folder);

// Names of the entries of a folder, sorted; an unreadable folder has none. (The standard library's
// iterator ends the process where memory runs out within a step that reports errors by code.)
std::vector<std::string> entry_names(const std::filesystem::path& folder);

// Makes the folder and what it lacks above it, and makes the new names durable.
void make_folders(const std::filesystem::path& path);

}  // namespace ds
