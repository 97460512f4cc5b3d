// What signals mean to a training run.
#pragma once

#include <csignal>
#include <vector>

namespace tool {

// What a loop asks between two steps.
struct SignalNews {
  int stop = 0;       // number of the signal that asks to save and end; 0: none
  bool save = false;  // somebody asked for a save since the last question
};

// For a whole run, also while it opens its files: a reader of its output that is gone (SIGPIPE) and
// a limit of file sizes (SIGXFSZ) become errors of the writes, and requests for a save (SIGUSR1,
// SIGUSR2) do not end a process that has nothing to save yet.
class QuietSignals {
 public:
  QuietSignals();
  ~QuietSignals();
  QuietSignals(const QuietSignals&) = delete;
  QuietSignals& operator=(const QuietSignals&) = delete;

 private:
  struct Old {
    int number;
    struct sigaction action;
  };
  std::vector<Old> old_;
};

// While it lives, SIGINT and SIGTERM ask a loop to end; a second one ends the process at once. In a
// loop that has something to save, SIGHUP and SIGXCPU ask for the same, however often they come (a
// terminal that closes sends two, a limit of CPU time one per second), and SIGUSR1 and SIGUSR2 to
// save and go on. A SIGHUP that was ignored (nohup) stays ignored.
class SignalWatch {
 public:
  enum class Loop { kEnds, kSaves };
  explicit SignalWatch(Loop loop);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int stop() const noexcept;  // number of the signal that asks to end, else 0
  SignalNews news() noexcept;

 private:
  struct Old {
    int number;
    struct sigaction action;
  };
  std::vector<Old> old_;
};

}  // namespace tool
