// How often stage 3 gathers weights, for the plan: the gatherer of the engine itself runs through
// the uses that a pass of the model makes, over memory that does not exist.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "nn/parameter.h"
#include "zero/flat_layout.h"
#include "zero/weight_gatherer.h"

namespace ds {

// Asks for a parameter, or gives it back.
struct WeightUse {
  nn::ParamId id = 0;
  bool begins = false;
};

// The uses of one forward and backward, recorded from a model of the same layers with the smallest
// sizes. Where none can be made of the configuration, or there is none: parameters in their order,
// and back. `segments` as in models::ForwardOptions.
std::vector<WeightUse> record_uses(const Json& model, const nn::ParameterSet& parameters,
                                   DType compute_type, int64_t segments);

struct GatherCount {
  int64_t calls = 0;
  int64_t elements = 0;  // of whole buckets
};

// Gathers per optimizer step of `passes` passes, once the order of uses is known.
GatherCount count_gathers(const zero::FlatLayout& layout, int world,
                          const zero::WeightGatherer::Limits& limits, DType compute_type,
                          const std::vector<WeightUse>& pass, int64_t passes);

}  // namespace ds
