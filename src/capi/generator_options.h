// The JSON options that generators are made with.
#pragma once

#include <optional>

#include "capi/json_args.h"
#include "infer/kv_blocks.h"
#include "models/inference_weights.h"

namespace ds::capi {

// "weights" of a generator that runs the model's own.
inline constexpr const char* kOwnWeights = "model";

// The form that weights are copied in, `fallback` where the options do not say; nothing: the
// model's own weights.
std::optional<models::InferenceOptions> prepared_form(const JsonArguments& given,
                                                      const char* fallback = kOwnWeights);

infer::KvOptions kv_of(const JsonArguments& given);

}  // namespace ds::capi
