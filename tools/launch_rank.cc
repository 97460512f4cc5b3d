#include "launch_rank.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "ds.hpp"
#include "failure.h"

namespace tool {
namespace {

// Variables that would lead ranks elsewhere than to this job.
constexpr const char* kUnset[] = {
    "DS_MASTER_FD", "DS_JOB_TOKEN_FILE", "TORCHELASTIC_USE_AGENT_STORE",
    "LOCAL_SIZE",   "CROSS_RANK",        "CROSS_SIZE"};

// `notes`: the file by which the rank tells about its failures.
std::vector<std::string> environment_of(const RankStart& start, int rank, int notes) {
  const std::string world = std::to_string(start.options.ranks), number = std::to_string(rank);
  std::vector<std::pair<std::string, std::string>> set = {
      {"RANK", number},
      {"WORLD_SIZE", world},
      {"LOCAL_RANK", number},
      {"LOCAL_WORLD_SIZE", world},
      {"GROUP_RANK", "0"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(start.port)},
      {"TORCHELASTIC_RUN_ID", start.job},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"DS_MASTER_PORT", std::to_string(start.meeting_port)},
      {"DS_JOB_TOKEN", start.token},
      {"DS_FAILURE_FD", std::to_string(notes)}};
  if (rank == 0) set.emplace_back("DS_MASTER_FD", std::to_string(start.meeting_file));
  std::vector<std::string> out;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view name = std::string_view(*at).substr(0, std::strcspn(*at, "="));
    const bool replaced =
        std::any_of(set.begin(), set.end(), [&](const auto& pair) { return pair.first == name; });
    if (!replaced && std::find(std::begin(kUnset), std::end(kUnset), name) == std::end(kUnset)) {
      out.emplace_back(*at);
    }
  }
  for (const auto& [name, value] : set) {
    out.emplace_back(name).append("=").append(value);
  }
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// The rank's part of the CPUs, all parts about equal; one CPU each when there are more ranks.
cpu_set_t share_of(const RankStart& start, int rank) {
  const size_t cpus = start.cpus.size(), ranks = static_cast<size_t>(start.options.ranks);
  const size_t r = static_cast<size_t>(rank);
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpus < ranks) {
    CPU_SET(start.cpus[r % cpus], &set);
  } else {
    for (size_t i = r * cpus / ranks; i < (r + 1) * cpus / ranks; ++i) CPU_SET(start.cpus[i], &set);
  }
  return set;
}

// A file descriptor that closes itself.
struct File {
  explicit File(int of) : number(of) {}
  ~File() {
    if (number >= 0) ::close(number);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int release() { return std::exchange(number, -1); }
  int number;
};

struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      throw RankError{std::string("cannot make a pipe: ") + std::strerror(errno), kFailed};
    }
    reading.number = ends[0];
    writing.number = ends[1];
  }
  File reading{-1};
  File writing{-1};
};

void connect_notes(FailureNotes& reading, File& writing) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw RankError{std::string("cannot make a socket: ") + std::strerror(errno), kFailed};
  }
  reading = FailureNotes(ends[0]);
  writing.number = ends[1];
}

int open_log(const LaunchOptions& options, int rank, const char* kind) {
  const std::string path = rank_log(options, rank, kind);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) throw RankError{"cannot write " + path + ": " + std::strerror(errno), kFailed};
  return file;
}

struct RankFiles {
  int out, err, notes, trouble;
};
// In the new process: never returns. What goes wrong is a number in `files.trouble`.
[[noreturn]] void become_rank(const RankStart& start, int rank, pid_t parent,
                              const RankFiles& files, char** command, char** environment) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) _exit(kFailed);  // it died before the line above
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  bool ready = nothing >= 0 && ::dup2(nothing, 0) >= 0 && ::dup2(files.out, 1) >= 0 &&
               ::dup2(files.err, 2) >= 0;
  // These stay open in the program.
  ready = ready && ::fcntl(files.notes, F_SETFD, 0) == 0 &&
          (rank != 0 || ::fcntl(start.meeting_file, F_SETFD, 0) == 0);
  if (ready && start.options.bind) {
    const cpu_set_t share = share_of(start, rank);
    ready = ::sched_setaffinity(0, sizeof share, &share) == 0;
  }
  if (ready) {
    ::sigaction(SIGPIPE, &start.pipe, nullptr);
    ::sigaction(SIGTTOU, &start.tty, nullptr);
    ::sigprocmask(SIG_SETMASK, &start.signals, nullptr);
    ::execvpe(command[0], command, environment);
  }
  const int error = errno;
  (void)!::write(files.trouble, &error, sizeof error);
  _exit(kNotFound);
}

}  // namespace

std::string rank_log(const LaunchOptions& options, int rank, const char* kind) {
  return options.rank_logs + "/rank-" + std::to_string(rank) + "." + kind;
}

void start_rank(const RankStart& start, Rank& rank, OutputQueue& out, OutputQueue& err) {
  std::vector<std::string> words = start.options.command;
  File notes(-1);
  connect_notes(rank.notes, notes);
  std::vector<std::string> variables = environment_of(start, rank.number, notes.number);
  std::vector<char*> command = pointers(words), environment = pointers(variables);

  const bool logged = !start.options.rank_logs.empty();
  Pipe trouble;
  File out_end(-1), err_end(-1);
  if (logged) {
    out_end.number = open_log(start.options, rank.number, "out");
    err_end.number = open_log(start.options, rank.number, "err");
  } else {
    const size_t width = std::to_string(start.options.ranks - 1).size();
    const std::string number = std::to_string(rank.number);
    const std::string prefix = "[" + std::string(width - number.size(), ' ') + number + "] ";
    const auto connect = [&](File& end, std::unique_ptr<LineReader>& reader, OutputQueue& to) {
      Pipe pipe;
      ::fcntl(pipe.reading.number, F_SETFL, O_NONBLOCK);
      reader = std::make_unique<LineReader>(pipe.reading.release(), prefix, &to);
      end.number = pipe.writing.release();
    };
    connect(out_end, rank.out, out);
    connect(err_end, rank.err, err);
  }

  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process == 0) {
    const RankFiles files{.out = out_end.number,
                          .err = err_end.number,
                          .notes = notes.number,
                          .trouble = trouble.writing.number};
    become_rank(start, rank.number, parent, files, command.data(), environment.data());
  }
  if (process < 0) {
    throw RankError{
        "cannot start rank " + std::to_string(rank.number) + ": " + std::strerror(errno), kFailed};
  }
  ::setpgid(process, process);  // whoever comes first
  rank.process = process;
  ::close(trouble.writing.release());
  int error = 0;
  ssize_t size = 0;
  while ((size = ::read(trouble.reading.number, &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (size == sizeof error) {
    const bool missing = error == ENOENT || error == ENOTDIR;
    throw RankError{"cannot run '" + words[0] + "': " + std::strerror(error),
                    missing ? kNotFound : kCannotRun};
  }
}

std::string describe_signal(int number) {
  return "signal " + std::to_string(number) + " (" + ::strsignal(number) + ")";
}

}  // namespace tool
