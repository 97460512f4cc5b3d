#include "engine/open_step.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace ds {
namespace {

double now_seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

}  // namespace

// A checkpoint may count anything.
void take_back(Progress& progress, int64_t micro_steps, int64_t samples, int64_t tokens) {
  progress.micro_steps = std::max<int64_t>(0, progress.micro_steps - micro_steps);
  progress.samples = std::max<int64_t>(0, progress.samples - samples);
  progress.tokens = std::max<int64_t>(0, progress.tokens - tokens);
}

void OpenStep::check_takes_gradients() const {
  DS_CHECK(phase != Phase::kForwardDone, Code::kState,
           "a forward waits for its backward; gradients can be given after it");
}

void OpenStep::check_synced(const char* what) const {
  DS_CHECK(!mode.no_sync, Code::kState, what,
           " inside a no_sync scope, whose gradients are not reduced; end the scope first "
           "(ds_scope_close)");
}

void OpenStep::begin_clock() {
  if (!began) began = now_seconds();
}

double OpenStep::seconds() const { return began ? now_seconds() - *began : 0; }

void OpenStep::count_samples(int64_t each, int64_t ranks, int64_t own) {
  progress.samples += each * ranks;
  samples += each * ranks;
  first_sample += each * ranks;
  own_samples += own;
}

void OpenStep::clear_counters() {
  micro_batches = own_micro_batches = 0;
  for (LossSum* const one : {&losses, &label_losses, &teacher_losses}) one->reset();
  tokens = samples = own_samples = first_sample = 0;
  began.reset();
}

void OpenStep::rewind() {
  take_back(progress, micro_batches, first_sample, tokens);
  clear_counters();
}

void OpenStep::give_up() {
  rewind();
  phase = Phase::kIdle;
  forward_counted = false;
  external_loss.reset();
  reduction_deferred = false;
}

void follow_ramp_up(Config& config, const OpenStep& open) {
  if (!config.batch_ramp_up) return;
  config.batch.set_train_batch(
      config.batch_ramp_up->size_after(open.progress.samples - open.first_sample));
}

}  // namespace ds
