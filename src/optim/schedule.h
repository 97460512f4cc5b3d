// Learning-rate schedules with the closed formulas of DeepSpeed's lr_schedules. A schedule is a
// pure function of how many steps were applied, so its state is one integer.
#pragma once

#include <cstdint>
#include <optional>

namespace ds::optim {

enum class ScheduleKind {
  kConstant,
  kLrRangeTest,
  kWarmup,
  kWarmupDecay,
  kWarmupCosine,
  kOneCycle,
};

// The keys of the configuration's scheduler.params; unused ones keep their defaults.
struct ScheduleSpec {
  ScheduleKind kind = ScheduleKind::kConstant;
  // WarmupLR, WarmupDecayLR, WarmupCosineLR
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr;  // unset: the optimizer's own rate
  int64_t warmup_num_steps = 1000;
  bool warmup_linear = false;  // else logarithmic
  int64_t total_num_steps = 0;
  double warmup_min_ratio = 0;
  double cos_min_ratio = 1e-4;
  // LRRangeTest
  double range_min_lr = 1e-3;
  int64_t range_step_size = 2000;
  double range_step_rate = 1;
  bool range_staircase = false;
  // OneCycle
  double cycle_min_lr = 0;
  double cycle_max_lr = 0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size;
  int64_t cycle_first_stair_count = 0;
  std::optional<int64_t> cycle_second_stair_count;
  int64_t decay_step_size = 0;
  double decay_lr_rate = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0;
};

class Schedule {
 public:
  // `base_lr` is the optimizer's configured rate.
  Schedule(const ScheduleSpec& spec, double base_lr) : spec_(spec), base_lr_(base_lr) {}

  // Rate of the optimizer step that follows `applied` applied steps.
  double lr(int64_t applied) const;
  // First moment coefficient that OneCycle prescribes for that step.
  std::optional<double> beta1(int64_t applied) const;
  // OneCycle with momentum fixes the second one at 0.99.
  std::optional<double> beta2() const;

 private:
  double warmup_fraction(int64_t index) const;
  double cycle_position(int64_t index) const;

  ScheduleSpec spec_;
  double base_lr_;
};

}  // namespace ds::optim
