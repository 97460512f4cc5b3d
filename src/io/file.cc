#include "io/file.h"

#include <fcntl.h>
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

}  // namespace

File::File(const std::filesystem::path& path, Access access, bool direct) : path_(path) {
  DS_CHECK(path.native().find('\0') == std::string::npos, Code::kInvalidArgument,
           "a path contains a NUL byte: ", printable(path.native()));
  int flags = O_RDONLY;
  if (access == Access::kCreate) flags = O_RDWR | O_CREAT | O_TRUNC;
  if (access == Access::kNew) flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW;
  if (access == Access::kUpdate) flags = O_RDWR | O_CREAT;
  fd_ = open_file(path, flags);
  if (fd_ < 0) fail_errno(access == Access::kRead ? "cannot open" : "cannot write", path);
  if (!direct) return;
  const Direct past_cache = open_direct(path, flags);
  direct_fd_ = past_cache.fd;
  memory_alignment_ = past_cache.memory_alignment;
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

void File::reserve(int64_t offset, int64_t bytes) {
  if (bytes <= 0) return;
  int result;
  do {
    result = ::fallocate(fd_, 0, offset, bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return;
  fail_errno(str_cat("cannot make room for ", bytes, " bytes at ", offset, " of"), path_);
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
