// Learning-rate schedules with the closed formulas of DeepSpeed's lr_schedules. A schedule is a
// pure function of how many steps were applied, so its state is one integer.
#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"

namespace ds::optim {

class Schedule {
 public:
  // `base_lr` is the optimizer's configured rate; no scheduler keeps it.
  Schedule(const std::optional<SchedulerConfig>& config, double base_lr, size_t group = 0)
      : config_(config), base_lr_(base_lr), group_(group) {}

  bool active() const { return config_.has_value(); }
  // Rate of the optimizer step that follows `applied` applied steps.
  double lr(int64_t applied) const;
  // First moment coefficient that OneCycle prescribes for that step.
  std::optional<double> beta1(int64_t applied) const;
  // OneCycle with momentum fixes the second one at 0.99.
  std::optional<double> beta2() const;

 private:
  std::optional<SchedulerConfig> config_;
  double base_lr_;
  size_t group_;  // of parameters, where rates are lists
};

// Weight decay of the step that follows `applied` applied steps.
double scheduled_decay(const DecayScheduleConfig& config, int64_t applied);

}  // namespace ds::optim
