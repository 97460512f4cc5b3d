// Ctrl-C and SIGTERM as a question that a loop asks between two steps.
#pragma once

namespace tool {

// While it lives, the first SIGINT or SIGTERM only sets pending(); the second ends the process.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Number of the signal that arrived, else 0.
  int pending() const noexcept;
};

}  // namespace tool
