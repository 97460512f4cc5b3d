// What a step did, and how far training has come.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace ds {

enum class SkipReason : int32_t { kNone = 0, kAccumulating = 1, kNonFinite = 2, kLargeNorm = 3 };

// Counters that a checkpoint carries.
struct Progress {
  int64_t steps = 0;  // optimizer steps, skipped ones included
  int64_t skipped = 0;
  int64_t micro_steps = 0;
  int64_t samples = 0;
  int64_t tokens = 0;
};

struct StepReport {  // a record of plain values, as many as ds_step_report has
  Progress progress;
  bool applied = false;
  SkipReason skip_reason = SkipReason::kNone;
  bool has_loss = false;  // else `loss` is NaN: the caller's gradients came without one
  double loss = 0;
  // What it is made of where a teacher takes part, else NaN: the mean loss with the labels, and
  // temperature^2 x the divergence from the teacher, without their weights.
  double label_loss = std::numeric_limits<double>::quiet_NaN();
  double teacher_loss = std::numeric_limits<double>::quiet_NaN();
  double grad_norm = 0;  // before clipping, -1 when not finite
  double lr = 0;
  double loss_scale = 1;
  double seconds = 0;
  // Of its phases, with wall_clock_breakdown.
  double forward_seconds = 0, backward_seconds = 0, update_seconds = 0;
  int64_t tokens = 0;
  std::string first_bad_tensor;
  int64_t first_bad_element = -1;  // its row-major index there; -1: none
  double first_bad_value = 0;      // NaN or an infinity
};

}  // namespace ds
