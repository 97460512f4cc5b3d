#include "signals.h"

#include <unistd.h>

#include <csignal>

#include "command.h"

namespace tool {
namespace {

// Only these may be touched by a signal handler; a process has one set of handlers.
volatile std::sig_atomic_t pending_signal = 0;
struct sigaction old_interrupt;
struct sigaction old_terminate;

extern "C" void on_signal(int number) {
  if (pending_signal != 0) _exit(kSignalBase + number);
  pending_signal = number;
}

}  // namespace

SignalWatch::SignalWatch() {
  pending_signal = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // reads and writes of a step go on
  sigaction(SIGINT, &action, &old_interrupt);
  sigaction(SIGTERM, &action, &old_terminate);
}

SignalWatch::~SignalWatch() {
  sigaction(SIGINT, &old_interrupt, nullptr);
  sigaction(SIGTERM, &old_terminate, nullptr);
}

int SignalWatch::pending() const noexcept { return pending_signal; }

}  // namespace tool
