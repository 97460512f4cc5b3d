#include "observe/timers.h"

#include <array>
#include <cstdio>
#include <utility>

namespace ds {

StepTimers::Scope::Scope(StepTimers* timers, const char* name) : timers_(timers), name_(name) {
  if (timers_ != nullptr) began_ = std::chrono::steady_clock::now();
}

StepTimers::Scope::~Scope() {
  if (timers_ == nullptr) return;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began_;
  timers_->seconds_[name_] += took.count();
}

std::map<std::string, double> StepTimers::take() { return std::exchange(seconds_, {}); }

std::string StepTimers::text(const std::map<std::string, double>& seconds) {
  std::string out = "time (ms)";
  for (const auto& [name, value] : seconds) {
    std::array<char, 64> line;
    std::snprintf(line.data(), line.size(), " | %s: %.2f", name.c_str(), value * 1e3);
    out += line.data();
  }
  return out;
}

}  // namespace ds
