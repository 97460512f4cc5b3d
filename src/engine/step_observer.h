// What training tells the outside world of its steps: the time of their phases, monitors, and lines
// in the log.
#pragma once

#include <memory>

#include "config/config.h"
#include "engine/report.h"
#include "engine/step_metrics.h"
#include "observe/monitor.h"
#include "observe/timers.h"

namespace ds {

struct RunContext;

class StepObserver {
 public:
  explicit StepObserver(RunContext& run);

  // Measures a phase of the step, with wall_clock_breakdown.
  ScopedTimer time(const char* phase) {
    return {config_.wall_clock_breakdown ? &timers_ : nullptr, phase};
  }
  // After a step: adds the times of its phases to the report, and writes it out.
  void finish_step(StepReport& report);
  void write_evaluation(const Progress& progress, double loss);
  // Waits until what monitors wrote is in their files.
  void sync() { monitors_->sync(); }

  StepMetrics& metrics() { return metrics_; }
  const StepMetrics& metrics() const { return metrics_; }

 private:
  void write_monitors(const StepReport& report);
  void print(const StepReport& report) const;

  const Config& config_;
  std::unique_ptr<MonitorSet> monitors_;
  StepMetrics metrics_;
  WallClockTimers timers_;  // of the phases since the last step
};

}  // namespace ds
