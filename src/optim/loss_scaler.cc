#include "optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace ds::optim {

LossScaler::LossScaler(const PrecisionConfig& precision)
    : config_(precision.loss_scale),
      dynamic_(precision.compute == Precision::kFp16 && config_.loss_scale == 0),
      hysteresis_(config_.hysteresis) {
  if (dynamic_) {
    scale_ = std::ldexp(1.0, config_.initial_scale_power);
  } else if (precision.compute == Precision::kFp16) {
    scale_ = config_.loss_scale;
  }
}

void LossScaler::update(bool overflow) {
  if (!dynamic_) return;
  exhausted_ = false;
  if (overflow) {
    if (config_.wrapper || config_.hysteresis == 1 || hysteresis_ == 1) {
      exhausted_ = !config_.wrapper && scale_ <= config_.min_loss_scale;
      if (!exhausted_) scale_ = std::max(scale_ / 2, config_.min_loss_scale);
    } else {
      --hysteresis_;
    }
    last_overflow_ = iteration_;
  } else {
    if (config_.consecutive_hysteresis) hysteresis_ = config_.hysteresis;
    const int64_t clean = iteration_ - last_overflow_ - 1;
    if (clean > 0 && clean % config_.loss_scale_window == 0) {
      hysteresis_ = config_.hysteresis;
      scale_ *= 2;
    }
  }
  ++iteration_;
}

Json LossScaler::save() const {
  return {{"scale", scale_},
          {"hysteresis", hysteresis_},
          {"iteration", iteration_},
          {"last_overflow", last_overflow_}};
}

void LossScaler::restore(const Json& saved) {
  const char* const what = "the checkpoint's loss scale";
  const auto at = [&](const char* name) {
    DS_CHECK(saved.is_object() && saved.contains(name) && saved[name].is_number(), Code::kCorrupt,
             what, " lacks the number ", name);
    return saved[name].get<double>();
  };
  const auto whole = [&](const char* name, double low) {
    const double value = at(name);
    DS_CHECK(value >= low && value < 0x1p62 && value == std::floor(value), Code::kCorrupt, what,
             " has ", name, " ", value);
    return static_cast<int64_t>(value);
  };
  const double scale = at("scale");
  DS_CHECK(std::isfinite(scale) && scale > 0, Code::kCorrupt, what, " is ", scale);
  // With a configured hysteresis of 0 it falls from there and never allows a smaller scale.
  const int64_t hysteresis = whole("hysteresis", -0x1p62), iteration = whole("iteration", 0);
  const int64_t last_overflow = whole("last_overflow", -1);
  DS_CHECK(last_overflow < std::max(iteration, int64_t{1}), Code::kCorrupt, what,
           " has an overflow at ", last_overflow, " after ", iteration, " steps");
  if (!dynamic_) return;
  scale_ = std::max(scale, config_.min_loss_scale);
  hysteresis_ = std::min(hysteresis, config_.hysteresis);
  if (config_.hysteresis > 0) hysteresis_ = std::max<int64_t>(hysteresis_, 1);
  iteration_ = iteration;
  last_overflow_ = last_overflow;
  exhausted_ = false;
}

}  // namespace ds::optim
