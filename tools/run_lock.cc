#include "run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <iostream>

#include "ds.hpp"
#include "failure.h"
#include "files.h"
#include "format.h"

namespace tool {
namespace {

std::string own_description() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::array<char, 32> when{};
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::strftime(when.data(), when.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return Json({{"process", ::getpid()}, {"host", host.data()}, {"since", when.data()}})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

// "process 12 on node3, since ...", of whoever holds the lock.
std::string holder(int fd) {
  std::array<char, 1024> text{};
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  const Json json = Json::parse(text.data(), text.data() + std::max<ssize_t>(n, 0), nullptr,
                                /*allow_exceptions=*/false);
  if (!json.is_object()) return "another process";
  return "process " + json.value("process", Json()).dump() + " on " +
         json.value("host", std::string("an unknown host")) + ", since " +
         json.value("since", std::string("an unknown time"));
}

// Whether the name still leads to the opened file: its holder removes it at its end.
bool same_file(int fd, const std::string& path) {
  struct stat held = {}, named = {};
  return ::fstat(fd, &held) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

}  // namespace

RunLock::RunLock(const std::string& folder) : path_(folder + "/.ds-lock") {
  make_folder(folder);
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd_ < 0) {
      throw Failure("cannot write to the folder " + folder + " that --save names: " + path_ + ": " +
                    std::strerror(errno));
    }
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      if (error == EWOULDBLOCK) {
        const std::string who = holder(fd_);
        ::close(fd_);
        throw Failure(std::string("another run saves to ")
                          .append(folder)
                          .append(": ")
                          .append(who)
                          .append(". Wait for its end or end it, or give --save another folder"));
      }
      std::cerr << "ds: warning: cannot lock " << path_ << ": " << std::strerror(error)
                << "; nothing keeps another run from saving to " << folder << "\n";
      return;
    }
    if (same_file(fd_, path_)) {
      locked_ = true;
      break;
    }
    ::close(fd_);
  }
  const std::string text = own_description() + "\n";
  // On a full disk the lock does without its text.
  if (::ftruncate(fd_, 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(fd_, text.data(), text.size(), 0);
  }
}

RunLock::~RunLock() {
  if (fd_ < 0) return;
  if (locked_) ::unlink(path_.c_str());
  ::close(fd_);
}

}  // namespace tool
