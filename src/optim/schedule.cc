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

// Steps of warm-up that the formulas use: one would divide by ln 1.
int64_t warmup_length(int64_t configured) { return std::max<int64_t>(2, configured); }

double warmup_fraction(int64_t i, int64_t n, WarmupShape shape) {
  if (i < 0) return 0;
  if (i >= n) return 1;
  return shape == WarmupShape::kLinear
             ? static_cast<double>(i) / static_cast<double>(n)
             : std::log(static_cast<double>(i + 1)) / std::log(static_cast<double>(n));
}

double ratio_of(int64_t a, int64_t b) {
  return static_cast<double>(a) / static_cast<double>(std::max<int64_t>(1, b));
}

// 0 at the ends of the cycle, 1 at its top.
double cycle_position(const OneCycleConfig& c, int64_t i) {
  const auto first = static_cast<double>(c.cycle_first_step_size);
  const auto second = static_cast<double>(c.cycle_second_step_size);
  const double position = std::fmod(static_cast<double>(i + 1), first + second);
  if (position <= first) return staircase(position / first, c.cycle_first_stair_count);
  return staircase((first + second - position) / second, c.cycle_second_stair_count);
}

// How many decay periods lie behind index i, 0 when decay is off.
double decay_periods(const OneCycleConfig& c, int64_t i) {
  if (c.decay_step_size == 0) return 0;
  return static_cast<double>(i - (c.cycle_first_step_size + c.cycle_second_step_size) + 1) /
         static_cast<double>(c.decay_step_size);
}

// Each reads index i: what the reference's scheduler holds after i + 1 calls of step(), -1 at
// first.
struct RateAt {
  int64_t i;
  double base_lr;
  size_t group;

  double operator()(const LrRangeTestConfig& c) const {
    double x = static_cast<double>(i + 1) / static_cast<double>(c.lr_range_test_step_size);
    if (c.lr_range_test_staircase) x = std::floor(x);
    return c.lr_range_test_min_lr.of(group) * (1 + c.lr_range_test_step_rate * x);
  }
  double operator()(const WarmupLrConfig& c) const {
    const double gamma = warmup_fraction(i, warmup_length(c.warmup_num_steps), c.warmup_type);
    return between(c.warmup_min_lr, c.warmup_max_lr.value_or(base_lr), gamma);
  }
  double operator()(const WarmupDecayLrConfig& c) const {
    const int64_t n = warmup_length(c.warmup_num_steps);
    const double gamma =
        i < n ? warmup_fraction(i, n, c.warmup_type)
              : std::max(0.0, ratio_of(c.total_num_steps - i, c.total_num_steps - n));
    return between(c.warmup_min_lr, c.warmup_max_lr.value_or(0.001), gamma);
  }
  double operator()(const WarmupCosineLrConfig& c) const {
    if (i < 0) return 0;  // whatever the ratio, as DeepSpeed begins
    const int64_t n = warmup_length(c.warmup_num_steps);
    if (i < n) {
      const double gamma = warmup_fraction(i, n, c.warmup_type);
      return base_lr * (c.warmup_min_ratio + (1 - c.warmup_min_ratio) * gamma);
    }
    const double x = std::min(1.0, ratio_of(i - n + 1, c.total_num_steps - n));
    return base_lr *
           (c.cos_min_ratio + (1 - c.cos_min_ratio) * (1 + std::cos(std::numbers::pi * x)) / 2);
  }
  double operator()(const OneCycleConfig& c) const {
    if (i < c.cycle_first_step_size + c.cycle_second_step_size) {
      return between(c.cycle_min_lr, c.cycle_max_lr, cycle_position(c, i));
    }
    return c.cycle_min_lr.of(group) / (1 + c.decay_lr_rate * decay_periods(c, i));
  }
  double between(const PerGroup& low, const PerGroup& high, double part) const {
    return low.of(group) + (high.of(group) - low.of(group)) * part;
  }
};

}  // namespace

double Schedule::lr(int64_t applied) const {
  return config_ ? std::visit(RateAt{applied - 1, base_lr_, group_}, *config_) : base_lr_;
}

std::optional<double> Schedule::beta1(int64_t applied) const {
  const auto* c = config_ ? std::get_if<OneCycleConfig>(&*config_) : nullptr;
  if (c == nullptr || !c->cycle_momentum) return std::nullopt;
  const int64_t i = applied - 1;
  if (i < 0) return c->cycle_min_mom;  // as DeepSpeed sets it before the first step
  if (i < c->cycle_first_step_size + c->cycle_second_step_size) {
    return c->cycle_max_mom - (c->cycle_max_mom - c->cycle_min_mom) * cycle_position(*c, i);
  }
  return c->cycle_max_mom * (1 + c->decay_mom_rate * decay_periods(*c, i));
}

std::optional<double> Schedule::beta2() const {
  const auto* c = config_ ? std::get_if<OneCycleConfig>(&*config_) : nullptr;
  if (c == nullptr || !c->cycle_momentum) return std::nullopt;
  return 0.99;
}

double scheduled_decay(const DecayScheduleConfig& config, int64_t applied) {
  if (applied >= config.total_num_steps) return config.end;
  const double way = static_cast<double>(applied) / static_cast<double>(config.total_num_steps);
  const double part =
      config.type == DecayShape::kCosine ? (1 - std::cos(std::numbers::pi * way)) / 2 : way;
  return config.start + part * (config.end - config.start);
}

}  // namespace ds::optim
