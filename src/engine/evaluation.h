// Evaluating a model over a data set: the mean loss, without dropout and without recording.
#pragma once

#include <cstdint>

#include "data/dataset.h"
#include "engine/call_control.h"

namespace ds {

struct RunContext;

// Over at most `max_batches` batches; 0: over all.
double evaluate(RunContext& run, CallControl& control, const Dataset& dataset, int64_t max_batches);

}  // namespace ds
