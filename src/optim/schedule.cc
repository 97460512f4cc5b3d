#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ds::optim {
namespace {

// Position within a phase cut into `stairs` equal steps (0: continuous). The tiny addition keeps a
// position that is exactly a stair from falling below it by rounding.
double staircase(double position, int64_t stairs) {
  if (stairs <= 0) return position;
  const auto n = static_cast<double>(stairs);
  return std::floor(position * n + 1e-9) / n;
}

}  // namespace

// The reference counts from -1: index i is what its scheduler holds after i + 1 calls of step(),
// and the step that follows `applied` applied ones runs with index applied - 1.
double Schedule::lr(int64_t applied) const {
  const int64_t i = applied - 1;
  const ScheduleSpec& s = spec_;
  switch (s.kind) {
    case ScheduleKind::kConstant:
      return base_lr_;
    case ScheduleKind::kLrRangeTest: {
      double x = static_cast<double>(i + 1) / static_cast<double>(s.range_step_size);
      if (s.range_staircase) x = std::floor(x);
      return s.range_min_lr * (1 + s.range_step_rate * x);
    }
    case ScheduleKind::kWarmup:
    case ScheduleKind::kWarmupDecay: {
      const double max_lr =
          s.warmup_max_lr.value_or(s.kind == ScheduleKind::kWarmupDecay ? 0.001 : base_lr_);
      const int64_t n = std::max<int64_t>(2, s.warmup_num_steps);
      double gamma = warmup_fraction(i);
      if (i >= n && s.kind == ScheduleKind::kWarmupDecay) {
        gamma = std::max(0.0, static_cast<double>(s.total_num_steps - i) /
                                  static_cast<double>(std::max<int64_t>(1, s.total_num_steps - n)));
      }
      return s.warmup_min_lr + (max_lr - s.warmup_min_lr) * gamma;
    }
    case ScheduleKind::kWarmupCosine: {
      const int64_t n = std::max<int64_t>(2, s.warmup_num_steps);
      if (i < n) {
        return base_lr_ * (s.warmup_min_ratio + (1 - s.warmup_min_ratio) * warmup_fraction(i));
      }
      const double x =
          std::min(1.0, static_cast<double>(i - n + 1) /
                            static_cast<double>(std::max<int64_t>(1, s.total_num_steps - n)));
      return base_lr_ *
             (s.cos_min_ratio + (1 - s.cos_min_ratio) * (1 + std::cos(std::numbers::pi * x)) / 2);
    }
    case ScheduleKind::kOneCycle: {
      const int64_t total =
          s.cycle_first_step_size + s.cycle_second_step_size.value_or(s.cycle_first_step_size);
      if (i < total) {
        return s.cycle_min_lr + (s.cycle_max_lr - s.cycle_min_lr) * cycle_position(i);
      }
      if (s.decay_step_size == 0) return s.cycle_min_lr;
      const double z = static_cast<double>(i - total + 1) / static_cast<double>(s.decay_step_size);
      return s.cycle_min_lr / (1 + s.decay_lr_rate * z);
    }
  }
  return base_lr_;
}

double Schedule::warmup_fraction(int64_t i) const {
  const int64_t n = std::max<int64_t>(2, spec_.warmup_num_steps);
  if (i < 0) return 0;
  if (i >= n) return 1;
  return spec_.warmup_linear
             ? static_cast<double>(i) / static_cast<double>(n)
             : std::log(static_cast<double>(i + 1)) / std::log(static_cast<double>(n));
}

double Schedule::cycle_position(int64_t i) const {
  const ScheduleSpec& s = spec_;
  const auto first = static_cast<double>(s.cycle_first_step_size);
  const auto second =
      static_cast<double>(s.cycle_second_step_size.value_or(s.cycle_first_step_size));
  const double position = std::fmod(static_cast<double>(i + 1), first + second);
  if (position <= first) return staircase(position / first, s.cycle_first_stair_count);
  return staircase((first + second - position) / second,
                   s.cycle_second_stair_count.value_or(s.cycle_first_stair_count));
}

std::optional<double> Schedule::beta1(int64_t applied) const {
  const ScheduleSpec& s = spec_;
  if (s.kind != ScheduleKind::kOneCycle || !s.cycle_momentum) return std::nullopt;
  const int64_t i = applied - 1;
  const int64_t total =
      s.cycle_first_step_size + s.cycle_second_step_size.value_or(s.cycle_first_step_size);
  if (i < total) {
    return s.cycle_max_mom - (s.cycle_max_mom - s.cycle_min_mom) * cycle_position(i);
  }
  if (s.decay_step_size == 0) return s.cycle_max_mom;
  const double z = static_cast<double>(i - total + 1) / static_cast<double>(s.decay_step_size);
  return s.cycle_max_mom * (1 + s.decay_mom_rate * z);
}

std::optional<double> Schedule::beta2() const {
  if (spec_.kind != ScheduleKind::kOneCycle || !spec_.cycle_momentum) return std::nullopt;
  return 0.99;
}

}  // namespace ds::optim
