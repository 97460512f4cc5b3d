#include "process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

namespace tool {
namespace {

struct Process {
  pid_t parent = 0;
  bool ended = false;
  bool stopped = false;
};

// "PID (NAME) STATE PPID ...": the name may hold anything, so the last bracket counts.
bool read_process(pid_t id, Process& out) {
  const std::string path = "/proc/" + std::to_string(id) + "/stat";
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[512];
  const ssize_t size = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (size <= 0) return false;
  text[size] = '\0';
  const char* const name_end = std::strrchr(text, ')');
  char state = 0;
  int parent = 0;
  if (name_end == nullptr || std::sscanf(name_end + 1, " %c %d", &state, &parent) != 2) {
    return false;
  }
  out = {parent, state == 'Z' || state == 'X', state == 'T' || state == 't'};
  return true;
}

std::unordered_map<pid_t, Process> all_processes() {
  std::unordered_map<pid_t, Process> all;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  while (const dirent* const entry = folder ? ::readdir(folder.get()) : nullptr) {
    const char* const end = entry->d_name + std::strlen(entry->d_name);
    pid_t id = 0;
    const auto [at, error] = std::from_chars(entry->d_name, end, id);
    if (error != std::errc() || at != end) continue;
    if (Process process; read_process(id, process)) all[id] = process;
  }
  return all;
}

}  // namespace

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }

std::vector<pid_t> descendants() {
  const std::unordered_map<pid_t, Process> all = all_processes();
  std::vector<std::pair<size_t, pid_t>> found;  // with the number of parents below this process
  for (const auto& [id, process] : all) {
    if (process.ended) continue;
    pid_t at = process.parent;
    size_t steps = 0;
    // Read one after the other, parents may look like a circle when a number was used again.
    for (; at > 1 && at != ::getpid() && steps < all.size(); ++steps) {
      const auto parent = all.find(at);
      at = parent == all.end() ? 0 : parent->second.parent;
    }
    if (at == ::getpid()) found.emplace_back(steps, id);
  }
  std::sort(found.begin(), found.end());
  std::vector<pid_t> ids;
  for (const auto& [steps, id] : found) ids.push_back(id);
  return ids;
}

bool is_stopped(pid_t id) {
  Process process;
  return read_process(id, process) && process.stopped;
}

void signal_descendants(int number) {
  for (const pid_t id : descendants()) ::kill(id, number);
}

int kill_descendants() {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(10);
  for (;;) {
    signal_descendants(SIGKILL);
    pid_t waited = 0;
    while ((waited = ::waitpid(-1, nullptr, WNOHANG)) > 0) {
    }
    if (waited < 0 && errno == ECHILD) return 0;
    if (Clock::now() > end) return static_cast<int>(descendants().size());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace tool
