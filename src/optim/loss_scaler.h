// Loss scaling of fp16 training, static or dynamic, with the rules of DeepSpeed's dynamic scaler: a
// state machine without side effects. The engine multiplies a loss by the scale, divides the
// gradients by that same scale, and then tells whether the step overflowed.
#pragma once

#include <cstdint>

#include "base/json.h"
#include "config/config.h"

namespace ds::optim {

class LossScaler {
 public:
  // Without fp16 the scale is 1 and stays so.
  explicit LossScaler(const PrecisionConfig& precision = {});

  bool dynamic() const { return dynamic_; }
  double scale() const { return scale_; }
  // Overflows that remain before the scale halves.
  int64_t hysteresis() const { return hysteresis_; }

  // After every step, applied or not.
  void update(bool overflow);

  // The last step overflowed at the smallest scale: training cannot go on.
  bool exhausted() const { return exhausted_; }

  // The state as JSON, and back; a static scale stays what the configuration says. Throws kCorrupt
  // for what no run of a loss scaler leaves.
  Json save() const;
  void restore(const Json& saved);

 private:
  LossScaleConfig config_;
  bool dynamic_ = false;
  bool exhausted_ = false;
  double scale_ = 1;
  int64_t hysteresis_ = 1;
  int64_t iteration_ = 0;       // updates so far
  int64_t last_overflow_ = -1;  // the iteration of the last one
};

}  // namespace ds::optim
