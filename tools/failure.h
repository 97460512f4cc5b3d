// How the program ends when it cannot go on.
#pragma once

#include <stdexcept>

namespace tool {

// Exit statuses; docs/cli.md promises them.
constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kSignalBase = 128;  // plus the number of the signal: 130 after Ctrl-C

// The run failed; the text is the whole message.
struct Failure : std::runtime_error {
  using runtime_error::runtime_error;
};

// The command line is wrong in a way that the parser alone cannot see.
struct UsageError : std::runtime_error {
  using runtime_error::runtime_error;
};

}  // namespace tool
