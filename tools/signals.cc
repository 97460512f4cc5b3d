#include "signals.h"

#include <unistd.h>

#include "ds.hpp"
#include "failure.h"

namespace tool {
namespace {

// Only these may be touched by a signal handler; a process has one set of handlers.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
volatile std::sig_atomic_t stop_signal = 0;
volatile std::sig_atomic_t insisted = 0;  // whether SIGINT or SIGTERM was among them
volatile std::sig_atomic_t save_asked = 0;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

extern "C" void on_stop(int number) {
  if (number == SIGINT || number == SIGTERM) {
    if (insisted != 0) _exit(kSignalBase + number);
    insisted = 1;
  }
  if (stop_signal == 0) stop_signal = number;
}

extern "C" void on_save(int /*number*/) { save_asked = 1; }

struct sigaction action_of(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // reads and writes of a step go on
  return action;
}

}  // namespace

QuietSignals::QuietSignals() {
  const struct sigaction ignore = action_of(SIG_IGN);
  for (const int number : {SIGPIPE, SIGXFSZ, SIGUSR1, SIGUSR2}) {
    old_.push_back({number, {}});
    sigaction(number, &ignore, &old_.back().action);
  }
}

QuietSignals::~QuietSignals() {
  for (const Old& old : old_) sigaction(old.number, &old.action, nullptr);
}

SignalWatch::SignalWatch(Loop loop) {
  stop_signal = 0;
  insisted = 0;
  save_asked = 0;
  const auto watch = [&](int number, void (*handler)(int)) {
    const struct sigaction action = action_of(handler);
    old_.push_back({number, {}});
    sigaction(number, &action, &old_.back().action);
  };
  for (const int number : {SIGINT, SIGTERM}) watch(number, on_stop);
  if (loop == Loop::kEnds) return;
  watch(SIGXCPU, on_stop);
  for (const int number : {SIGUSR1, SIGUSR2}) watch(number, on_save);
  struct sigaction hang_up = {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) watch(SIGHUP, on_stop);
}

SignalWatch::~SignalWatch() {
  // The program is about to end with the status of the signal that stopped it; another one, such as
  // a terminal's second SIGHUP, must not change that.
  if (stop_signal != 0) return;
  for (const Old& old : old_) sigaction(old.number, &old.action, nullptr);
}

int SignalWatch::stop() const noexcept { return stop_signal; }

SignalNews SignalWatch::news() noexcept {
  SignalNews out;
  out.stop = stop_signal;
  out.save = save_asked != 0;
  save_asked = 0;
  return out;
}

}  // namespace tool
