// A file for asynchronous I/O: one descriptor that goes past the page cache, where the file system
// allows that, and one that goes through it, for what is not aligned.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace ds::io {

enum class Access {
  kRead,
  kCreate,  // an empty file to write and read
  kNew,     // the same; nothing of that name may be there, not even a link
  kUpdate,  // what is there stays; made when missing
};

// A file whatever its path: its device, its number there, and, where the system knows that, when it
// was made and what else sets it apart from one that had the number before.
struct FileIdentity {
  uint64_t device = 0, number = 0;
  int64_t made_seconds = 0, made_nanoseconds = 0, generation = 0;
  auto operator<=>(const FileIdentity&) const = default;  // NOLINT(modernize-use-nullptr)
};

class File {
 public:
  File() = default;
  // `direct` false goes through the page cache always. What is neither a file nor a block device is
  // refused.
  File(const std::filesystem::path& path, Access access, bool direct = true);
  // The file of a descriptor of the caller, who keeps it: kRead, kUpdate, or kCreate, which empties
  // it. Past the page cache where the file can be opened a second time.
  File(int descriptor, Access access);
  // An empty file to write and read that nobody can open by a name, so that nothing of it is left
  // when the process ends, however it ends. `path` is what messages call it. Where the file system
  // cannot make such files, one of that name is made and removed at once.
  static File unnamed(const std::filesystem::path& path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  bool is_open() const noexcept { return fd_ >= 0; }
  // Whether aligned requests go past the page cache.
  bool direct() const noexcept { return direct_fd_ >= 0; }
  // What addresses must be multiples of to go past it: kAlignment, or less where the device says
  // so.
  int64_t memory_alignment() const noexcept { return memory_alignment_; }
  const std::filesystem::path& path() const noexcept { return path_; }
  int fd() const noexcept { return fd_; }
  int direct_fd() const noexcept { return direct_fd_; }

  int64_t size() const;
  FileIdentity identity() const;
  // Makes sure that the disk has room for [offset, offset + bytes) and lets the file reach that
  // far: writes that make a file longer are not asynchronous. File systems that cannot do it are
  // fine.
  void reserve(int64_t offset, int64_t bytes);
  // Ends the file there; what was reserved behind it goes back to the disk.
  void resize(int64_t bytes);
  // Blocking, through the page cache.
  void read_at(int64_t offset, std::span<std::byte> bytes) const;
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  void sync();   // fsync
  void close();  // reports the error that a destructor would have to swallow

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int direct_fd_ = -1;
  int64_t memory_alignment_ = 1;
};

}  // namespace ds::io
