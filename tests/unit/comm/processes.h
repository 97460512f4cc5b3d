// Ranks as forked processes that meet at a port of this host, and what became of them.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "unit/comm/support.h"

namespace ds::testing {

// What a rank's process reports through a pipe before it ends.
class Processes {
 public:
  using Body = std::function<void(int rank, const std::function<CommPtr()>& join)>;

  // Forks `size` ranks; each calls body, and what it throws is its report ("ok" without).
  Processes(int size, CommOptions options, const Body& body)
      : ids_(static_cast<size_t>(size)), pipes_(static_cast<size_t>(size)) {
    options.master_addr = "127.0.0.1";
    if (options.master_port == 0) options.master_port = free_port();
    for (int rank = 0; rank < size; ++rank) {
      int ends[2];
      if (::pipe(ends) != 0) ADD_FAILURE() << "no pipe";
      const pid_t id = ::fork();
      if (id == 0) {
        ::close(ends[0]);
        std::string report = "ok";
        try {
          body(rank, [&] { return make_communicator(rank, size, options); });
        } catch (const Error& error) {
          report = error.message();
        } catch (const std::exception& error) {
          report = error.what();
        }
        if (::write(ends[1], report.data(), report.size()) < 0) ::_exit(3);
        ::_exit(0);
      }
      ::close(ends[1]);
      ids_[static_cast<size_t>(rank)] = id;
      pipes_[static_cast<size_t>(rank)] = ends[0];
    }
  }
  ~Processes() {
    for (const pid_t id : ids_) ::kill(id, SIGKILL);
    for (size_t i = 0; i < ids_.size(); ++i) {
      ::waitpid(ids_[i], nullptr, 0);
      ::close(pipes_[i]);
    }
  }
  pid_t id(int rank) const { return ids_[static_cast<size_t>(rank)]; }

  // By rank; "" for a rank that was killed. `except` are not waited for.
  std::vector<std::string> reports(const std::vector<int>& except = {}) {
    std::vector<std::string> all;
    for (size_t i = 0; i < ids_.size(); ++i) {
      std::string text;
      char buffer[4096];
      const bool skipped = std::ranges::find(except, static_cast<int>(i)) != except.end();
      for (ssize_t n = 1; !skipped && n > 0;) {
        n = ::read(pipes_[i], buffer, sizeof(buffer));
        if (n > 0) text.append(buffer, static_cast<size_t>(n));
      }
      all.push_back(text);
    }
    return all;
  }

  static int free_port() {
    // Ports of different tests that run at once do not meet: each process has its own range.
    static std::atomic<int> next{20000 + static_cast<int>(::getpid()) % 1000 * 10};
    return 1024 + (next += 1) % 30000;
  }

 private:
  std::vector<pid_t> ids_;
  std::vector<int> pipes_;
};

}  // namespace ds::testing
