// How often stage 3 gathers weights, for the plan: the gatherer of the engine itself runs through
// the uses that a pass of the model makes, over memory that does not exist.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/json.h"
#include "models/architecture.h"
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
// and back.
std::vector<WeightUse> record_uses(const Json& model, const nn::ParameterSet& parameters,
                                   DType compute_type, const models::Recompute& recompute);

// Of one way in which weights travel, per optimizer step.
struct GatherCount {
  int64_t calls = 0;
  int64_t bytes = 0;  // of whole buckets, as they travel
};
struct GatherCounts {
  // By gradient domain.
  std::vector<GatherCount> all;   // from the ranks that hold a copy together
  std::vector<GatherCount> near;  // from those of a second copy
  int64_t most = 0;               // elements that are there at a time, beside what the rank holds
};

// A route that moves nothing: `make` gives what stands for a gathered bucket.
using MakeBucket = std::function<Tensor(const zero::Bucket&)>;
std::unique_ptr<zero::BucketRoute> make_counting_route(const zero::FlatLayout& layout,
                                                       const MakeBucket& make);

// Gathers per optimizer step of `passes` passes, once the order of uses is known. `travels` tells
// the bytes of a bucket; `kept_near`: whether near ranks keep what was gathered until it changes.
GatherCounts count_gathers(const zero::FlatLayout& layout,
                           const zero::WeightGatherer::Limits& limits, DType compute_type,
                           const std::function<int64_t(const zero::Bucket&)>& travels,
                           const std::function<bool(const zero::Bucket&)>& kept_near,
                           const std::vector<WeightUse>& pass, int64_t passes);

}  // namespace ds
