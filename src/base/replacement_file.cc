#include "base/replacement_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>

namespace ds {
namespace {

namespace fs = std::filesystem;

constexpr int kAttempts = 1000;
constexpr std::string_view kMark = ".tmp.";

// "PID.N", or "PID" as earlier versions had it.
bool is_number_pair(std::string_view text) {
  return !text.empty() && text.size() <= 40 && std::count(text.begin(), text.end(), '.') <= 1 &&
         text.front() != '.' && text.back() != '.' &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
}

bool same_file(int fd, const fs::path& path) {
  struct stat held, named;
  return ::fstat(fd, &held) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

bool locks_unsupported(int error) {
  return error == EBADF || error == ENOLCK || error == ENOTSUP || error == ENOSYS;
}

// Removes a temporary file of a process that is gone. Where the file system has no locks nobody
// knows that, and the file stays.
void remove_if_left(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return;
  struct stat info;
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && ::flock(fd, LOCK_EX | LOCK_NB) == 0) {
    if (same_file(fd, path)) ::unlink(path.c_str());
    ::flock(fd, LOCK_UN);  // a forked child may hold a copy of the descriptor
  }
  ::close(fd);
}

void remove_leftovers(const fs::path& path) noexcept {
  try {
    const std::string prefix = path.filename().string() + std::string(kMark);
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    for (const std::string& name : entry_names(folder)) {
      if (name.starts_with(prefix) &&
          is_number_pair(std::string_view(name).substr(prefix.size()))) {
        remove_if_left(folder / name);
      }
    }
  } catch (const std::exception&) {
    // Cleaning up is a courtesy: the write goes on.
  }
}

}  // namespace

ReplacementFile::ReplacementFile(const fs::path& path) : path_(path) {
  remove_leftovers(path);
  // Another thread may write the same path: its file may be there, or be gone again by the time
  // that we look what is in the way.
  constexpr int kLooks = 100;
  int absent = 0;
  for (int n = 0; n < kAttempts; ++n) {
    temporary_ = path;
    temporary_ += str_cat(kMark, ::getpid(), ".", n);
    try {
      file_ = File(temporary_, File::Mode::kNew);
    } catch (const Error&) {
      struct stat taken;
      if (::lstat(temporary_.c_str(), &taken) == 0 || ++absent < kLooks) continue;
      throw;
    }
    // Until it is locked, another process may take it for a leftover and remove it.
    if (::flock(file_.fd(), LOCK_EX | LOCK_NB) == 0 ? same_file(file_.fd(), temporary_)
                                                    : locks_unsupported(errno)) {
      return;
    }
    file_ = File();
  }
  fail(Code::kIo, "cannot make a temporary file beside ", printable(path.string(), 300));
}

ReplacementFile::~ReplacementFile() {
  if (file_.is_open()) ::unlink(temporary_.c_str());
}

void ReplacementFile::commit() {
  file_.sync();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_errno("cannot replace", path_);
  file_.close();  // it is synced: nothing can go wrong any more
  sync_folder(path_.parent_path());
}

}  // namespace ds
