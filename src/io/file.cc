#include "io/file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "io/buffer.h"

namespace ds::io {
namespace {

std::string place(int64_t offset, size_t bytes) {
  return str_cat(" (", bytes, " bytes at ", offset, ")");
}

int open_file(const std::filesystem::path& path, int flags) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

struct Direct {
  int fd = -1;
  int64_t memory_alignment = kAlignment;
};

// A descriptor past the page cache; none where the file system has none or asks for a larger
// alignment than ours.
Direct open_direct(const std::filesystem::path& path, int flags) {
  Direct out;
  out.fd = open_file(path, (flags & ~(O_CREAT | O_TRUNC | O_EXCL)) | O_DIRECT);
  if (out.fd < 0) return {};
#if defined(STATX_DIOALIGN)
  struct statx info;
  if (::statx(out.fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    if (info.stx_dio_offset_align == 0 || info.stx_dio_offset_align > kAlignment ||
        info.stx_dio_mem_align > kAlignment) {
      ::close(out.fd);
      return {};
    }
    if (info.stx_dio_mem_align > 0) out.memory_alignment = info.stx_dio_mem_align;
  }
#endif
  return out;
}

int flags_of(Access access) {
  if (access == Access::kCreate) return O_RDWR | O_CREAT | O_TRUNC;
  if (access == Access::kNew) return O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW;
  if (access == Access::kUpdate) return O_RDWR | O_CREAT;
  return O_RDONLY;
}

// A pipe would block for ever, and a folder cannot be read.
void check_kind(mode_t mode, const std::filesystem::path& path) {
  DS_CHECK(S_ISREG(mode) || S_ISBLK(mode), Code::kInvalidArgument, printable(path.string(), 300),
           " is ", S_ISDIR(mode) ? "a folder" : "a pipe, socket or terminal", "; a file is needed");
}

// What messages call the file of a descriptor.
std::filesystem::path path_of(int descriptor, const std::string& link) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::read_symlink(link, error);
  return error ? std::filesystem::path(str_cat("descriptor ", descriptor)) : path;
}

}  // namespace

File::File(int descriptor, Access access) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  DS_CHECK(flags >= 0, Code::kInvalidArgument, "descriptor ", descriptor, " is not open");
  const std::string link = str_cat("/proc/self/fd/", descriptor);
  path_ = path_of(descriptor, link);
  struct stat info;
  if (::fstat(descriptor, &info) != 0) fail_errno("cannot stat", path_);
  check_kind(info.st_mode, path_);
  const bool write = access != Access::kRead;
  const int mode = flags & O_ACCMODE;
  DS_CHECK(mode == O_RDWR || mode == (write ? O_WRONLY : O_RDONLY), Code::kInvalidArgument,
           "descriptor ", descriptor, " (", printable(path_.string(), 300), ") is not open for ",
           write ? "writing" : "reading");
  DS_CHECK(!write || (flags & O_APPEND) == 0, Code::kInvalidArgument, "descriptor ", descriptor,
           " (", printable(path_.string(), 300),
           ") is open for appending, and so cannot be written at an offset");
  if (access == Access::kCreate && ::ftruncate(descriptor, 0) != 0) {
    fail_errno("cannot empty", path_);
  }
  // One that can be read too, past the page cache and through it; else a copy of the caller's.
  fd_ = open_file(link, write ? O_RDWR : O_RDONLY);
  if (fd_ < 0) fd_ = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (fd_ < 0) fail_errno("cannot use", path_);
  const Direct past_cache = open_direct(link, write ? O_RDWR : O_RDONLY);
  direct_fd_ = past_cache.fd;
  memory_alignment_ = past_cache.memory_alignment;
}

File::File(const std::filesystem::path& path, Access access, bool direct) : path_(path) {
  DS_CHECK(path.native().find('\0') == std::string::npos, Code::kInvalidArgument,
           "a path contains a NUL byte: ", printable(path.native()));
  const int flags = flags_of(access);
  struct stat info;
  if (::stat(path.c_str(), &info) == 0) check_kind(info.st_mode, path);
  fd_ = open_file(path, flags);
  if (fd_ < 0) fail_errno(access == Access::kRead ? "cannot open" : "cannot write", path);
  if (!direct) return;
  const Direct past_cache = open_direct(path, flags);
  direct_fd_ = past_cache.fd;
  memory_alignment_ = past_cache.memory_alignment;
}

File File::unnamed(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.parent_path();
  File out;
  out.path_ = path;
  out.fd_ = open_file(folder.empty() ? std::filesystem::path(".") : folder, O_RDWR | O_TMPFILE);
  const std::string link = str_cat("/proc/self/fd/", out.fd_);
  struct stat info;
  if (out.fd_ < 0 || ::lstat(link.c_str(), &info) != 0) {  // errors of the disk come again
    File named(path, Access::kNew);
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    return named;
  }
  const Direct past_cache = open_direct(link, O_RDWR);
  out.direct_fd_ = past_cache.fd;
  out.memory_alignment_ = past_cache.memory_alignment;
  return out;
}

File::~File() {
  if (direct_fd_ >= 0) ::close(direct_fd_);
  if (fd_ >= 0) ::close(fd_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      direct_fd_(std::exchange(other.direct_fd_, -1)),
      memory_alignment_(other.memory_alignment_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(direct_fd_, other.direct_fd_);
  std::swap(memory_alignment_, other.memory_alignment_);
  return *this;
}

int64_t File::size() const {
  struct stat info;
  if (::fstat(fd_, &info) != 0) fail_errno("cannot stat", path_);
  return info.st_size;
}

FileIdentity File::identity() const {
  struct statx info {};
  if (::statx(fd_, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &info) != 0) {
    fail_errno("cannot stat", path_);
  }
  FileIdentity out{(uint64_t{info.stx_dev_major} << 32) | info.stx_dev_minor, info.stx_ino};
  if ((info.stx_mask & STATX_BTIME) != 0) {
    out.made_seconds = info.stx_btime.tv_sec;
    out.made_nanoseconds = info.stx_btime.tv_nsec;
  }
  int32_t generation = 0;
  if (::ioctl(fd_, FS_IOC_GETVERSION, &generation) == 0) out.generation = generation;
  return out;
}

void File::reserve(int64_t offset, int64_t bytes) {
  if (bytes <= 0) return;
  int result;
  do {
    result = ::fallocate(fd_, 0, offset, bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return;
  fail_errno(str_cat("cannot make room for ", bytes, " bytes at ", offset, " of"), path_);
}

void File::resize(int64_t bytes) {
  int result;
  do {
    result = ::ftruncate(fd_, bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) fail_errno(str_cat("cannot end at byte ", bytes), path_);
}

void File::read_at(int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = ::pread(fd_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno("cannot read", path_, place(offset, bytes.size()));
    DS_CHECK(n > 0, Code::kCorrupt, printable(path_.string(), 300), " has ", size(), " bytes, but ",
             bytes.size(), " bytes at ", offset, " were to be read: the file is truncated");
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

void File::write_at(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno("cannot write", path_, place(offset, bytes.size()));
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

void File::sync() {
  if (::fsync(fd_) != 0) fail_errno("cannot sync", path_);
}

void File::close() {
  const int direct = std::exchange(direct_fd_, -1);
  if (direct >= 0) ::close(direct);  // shares the file, and with it the errors, of the other
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && ::close(fd) != 0) fail_errno("cannot close", path_);
}

}  // namespace ds::io
