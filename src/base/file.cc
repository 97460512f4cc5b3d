#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace ds {
namespace {

int open_or_fail(const std::filesystem::path& path, int flags, int mode = 0) {
  DS_CHECK(path.native().find('\0') == std::string::npos, Code::kInvalidArgument,
           "a path contains a NUL byte: ", printable(path.native()));
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) fail_errno((flags & O_ACCMODE) == O_RDONLY ? "cannot open" : "cannot write", path);
  return fd;
}

}  // namespace

Error errno_error(std::string_view what, const std::filesystem::path& path, int error,
                  std::string_view where) {
  return {error == ENOENT ? Code::kNotFound : Code::kIo,
          str_cat(what, " ", printable(path.string(), 300), where, ": ",
                  std::generic_category().message(error))};
}

void fail_errno(std::string_view what, const std::filesystem::path& path, std::string_view where) {
  throw errno_error(what, path, errno, where);
}

File::File(const std::filesystem::path& path, Mode mode) : path_(path) {
  int flags = O_RDONLY;
  if (mode == Mode::kCreate) flags = O_RDWR | O_CREAT | O_TRUNC;
  if (mode == Mode::kAppend) flags = O_RDWR | O_CREAT | O_APPEND;
  fd_ = open_or_fail(path, flags, 0666);
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

int64_t File::size() const {
  struct stat info;
  if (::fstat(fd_, &info) != 0) fail_errno("cannot stat", path_);
  return info.st_size;
}

void File::read_at(int64_t offset, std::span<std::byte> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pread(fd_, bytes.data() + done, bytes.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno("cannot read", path_);
    DS_CHECK(n > 0, Code::kCorrupt, printable(path_.string(), 300), " ends at byte ",
             offset + static_cast<int64_t>(done), ", ", bytes.size() - done,
             " bytes short: the file is truncated");
    done += static_cast<size_t>(n);
  }
}

void File::write_at(int64_t offset, std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pwrite(fd_, bytes.data() + done, bytes.size() - done,
                               offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno("cannot write", path_);
    done += static_cast<size_t>(n);
  }
}

void File::append(std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno("cannot write", path_);
    done += static_cast<size_t>(n);
  }
}

void File::sync() {
  if (::fsync(fd_) != 0) fail_errno("cannot sync", path_);
}

void File::close() {
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && ::close(fd) != 0) fail_errno("cannot close", path_);
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const int fd = open_or_fail(path, O_RDONLY);
  struct stat info;
  if (::fstat(fd, &info) != 0) {
    ::close(fd);
    fail_errno("cannot stat", path);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    fail(Code::kIo, printable(path.string(), 300), " is not a regular file");
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* const map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
      ::close(fd);
      fail_errno("cannot map", path);
    }
    data_ = static_cast<const std::byte*>(map);
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::string read_text_file(const std::filesystem::path& path, int64_t limit) {
  const File file(path, File::Mode::kRead);
  const int64_t size = file.size();
  DS_CHECK(size <= limit, Code::kIo, printable(path.string(), 300), " has ", size,
           " bytes, more than the ", limit, " accepted here");
  std::string text(static_cast<size_t>(size), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_file_durably(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path temporary = path;
  // Two threads may write the same path at once.
  temporary += ".tmp." + std::to_string(::getpid()) + "." + std::to_string(::gettid());
  try {
    File file(temporary, File::Mode::kCreate);
    file.append(content);
    file.sync();
    file.close();
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_errno("cannot replace", path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(path.parent_path());
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path target = folder.empty() ? "." : folder;
  const int fd = open_or_fail(target, O_RDONLY | O_DIRECTORY);
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  errno = error;
  if (result != 0) fail_errno("cannot sync", target);
}

void make_folders(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  DS_CHECK(!error, Code::kIo, "cannot create the folder ", printable(path.string(), 300), ": ",
           error.message());
}

}  // namespace ds
