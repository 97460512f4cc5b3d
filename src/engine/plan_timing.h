// How long a model's own operators take on this machine: one block forward and backward, and what
// stands around the blocks, over weights of zeros.
#pragma once

#include <optional>

#include "base/thread_pool.h"
#include "engine/plan_context.h"

namespace ds {

// Forward and backward, per token.
struct PassSeconds {
  double block = 0;
  double rest = 0;  // embedding, last norm, head and loss
};

// Of so many samples at a time, of which no more are run than tell the speed. None where the model
// has no passes to run, ranks compute them together, or a block is so large that it would take
// long: then products are nine tenths of it or more.
std::optional<PassSeconds> time_pass(const PlanContext& plan, int64_t samples, ThreadPool& pool);

}  // namespace ds
