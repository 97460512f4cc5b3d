#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "base/replacement_file.h"

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

// The system's error, or 0.
int try_to_sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path target = folder.empty() ? "." : folder;
  int fd;
  do {
    fd = ::open(target.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return errno;
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  return error;
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
  if (mode == Mode::kReadRegular) flags = O_RDONLY | O_NONBLOCK;  // a pipe must not block here
  if (mode == Mode::kCreate) flags = O_RDWR | O_CREAT | O_TRUNC;
  if (mode == Mode::kNew) flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW;
  if (mode == Mode::kAppend) flags = O_RDWR | O_CREAT | O_APPEND;
  fd_ = open_or_fail(path, flags, 0666);
  if (mode != Mode::kReadRegular) return;
  struct stat info;
  if (::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode)) return;
  ::close(std::exchange(fd_, -1));
  fail(Code::kIo, printable(path.string(), 300), " is not a regular file");
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
    DS_CHECK(n > 0, Code::kCorrupt, printable(path_.string(), 300), " has ", size(), " bytes, but ",
             bytes.size(), " bytes at ", offset, " were to be read, up to byte ",
             offset + static_cast<int64_t>(bytes.size()), ": the file is truncated");
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
  ReplacementFile file(path);
  file->append(content);
  file.commit();
}

void sync_folder(const std::filesystem::path& folder) {
  if (const int error = try_to_sync_folder(folder); error != 0) {
    throw errno_error("cannot sync", folder.empty() ? std::filesystem::path(".") : folder, error);
  }
}

std::vector<std::string> entry_names(const std::filesystem::path& folder) {
  const auto close = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> open(::opendir(folder.empty() ? "." : folder.c_str()),
                                                   close);
  std::vector<std::string> names;
  while (open) {
    const dirent* const entry = ::readdir(open.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void make_folders(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> missing;
  // "a/b/" names the same folder as "a/b".
  fs::path at = path.has_filename() ? path : path.parent_path();
  while (!at.empty() && fs::symlink_status(at, error).type() == fs::file_type::not_found) {
    missing.push_back(at);
    at = at.parent_path();
  }
  error.clear();
  fs::create_directories(path, error);
  DS_CHECK(!error && fs::is_directory(path, error), Code::kIo, "cannot create the folder ",
           printable(path.string(), 300), ": ",
           error ? error.message() : "something else has that name");
  for (; !missing.empty(); missing.pop_back()) {
    const fs::path parent = missing.back().parent_path();
    // A folder may be one that can be written but not read, and some file systems do not sync
    // folders: what is kept there is then as durable as they make it.
    const int failure = try_to_sync_folder(parent);
    if (failure != 0 && failure != EACCES && failure != EINVAL) {
      throw errno_error("cannot sync", parent, failure);
    }
  }
}

}  // namespace ds
