// Named timers of the phases of a training step, for the wall-clock breakdown.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace ds {

// Off: costs nothing and reports nothing. Phases that ran several times since the last report are
// summed.
class StepTimers {
 public:
  explicit StepTimers(bool enabled) : enabled_(enabled) {}

  class Scope {
   public:
    Scope(StepTimers* timers, const char* name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StepTimers* timers_;  // null when off
    const char* name_;
    std::chrono::steady_clock::time_point began_;
  };
  Scope scope(const char* name) { return {enabled_ ? this : nullptr, name}; }

  // Seconds by phase since the last take, which this call clears.
  std::map<std::string, double> take();
  static std::string text(const std::map<std::string, double>& seconds);

 private:
  bool enabled_;
  std::map<std::string, double> seconds_;
};

}  // namespace ds
