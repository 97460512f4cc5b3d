// One rank of `ds launch`: how its process starts, and what became of it.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "launch_failure.h"
#include "launch_options.h"
#include "launch_output.h"

namespace tool {

// Exit statuses as shells, env and timeout give them.
constexpr int kTimedOut = 124;
constexpr int kCannotRun = 126;
constexpr int kNotFound = 127;

struct Rank {
  int number = 0;
  pid_t process = 0;    // also its process group; 0 once it was waited for, or never started
  int status = -1;      // exit code, or 128 + the signal
  bool killed = false;  // by a signal
  double ended = 0;     // seconds after the start
  FailureNotes notes;   // of its failures, by its own clock
  std::unique_ptr<LineReader> out;  // without --rank-logs
  std::unique_ptr<LineReader> err;
};

// What all ranks are started with.
struct RankStart {
  LaunchOptions options;
  int port = 0;                // MASTER_PORT
  int meeting_port = 0;        // where ranks of the library meet
  int meeting_file = -1;       // the listener there, for rank 0
  std::string token;           // the secret of the job
  std::string job;             // keeps jobs apart that use one port
  sigset_t signals = {};       // the mask that ranks get
  struct sigaction pipe = {};  // what SIGPIPE did when the program began
  struct sigaction tty = {};   // and SIGTTOU
  std::vector<int> cpus;       // that the program may use
};

// "DIR/rank-3.err"
std::string rank_log(const LaunchOptions& options, int rank, const char* kind);

// Starts the command as a process group of its own that is killed when this process dies. Throws
// RankError.
void start_rank(const RankStart& start, Rank& rank, OutputQueue& out, OutputQueue& err);

struct RankError {
  std::string text;
  int status;  // for the program to end with
};

// "signal 9 (Killed)"
std::string describe_signal(int number);

}  // namespace tool
