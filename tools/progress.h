// How a training run looks to a person: a bar on a terminal, plain lines elsewhere. Standard error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ds.hpp"
#include "megatron_log.h"

namespace tool {

class Progress {
 public:
  // Steps first + 1 to total; elsewhere than on a terminal one line every `interval` steps. With
  // `log`, its lines and nothing else.
  Progress(int64_t first, int64_t total, int64_t interval, bool quiet,
           std::optional<MegatronLog> log = std::nullopt);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `bad_parameter`: of a step that was not applied, the first one with a bad gradient.
  void step(const libds::StepReport& report, const std::string& bad_parameter);
  // A line of its own, above the bar.
  void message(const std::string& text);
  // Takes the bar away, for something else that writes to standard error.
  void clear();

 private:
  std::string eta(int64_t step) const;
  void log_step(const libds::StepReport& report);
  void draw(const std::string& text);

  int64_t first_;
  int64_t total_;
  int64_t interval_;
  bool quiet_;
  bool terminal_;
  std::optional<MegatronLog> log_;
  bool drawn_ = false;
  double step_seconds_ = 0;       // smoothed
  double tokens_per_second_ = 0;  // smoothed
};

// Tokens of a step per second, 0 when the step took no measurable time.
double tokens_per_second(const libds::StepReport& report);

}  // namespace tool
