// Choosing a token from logits: temperature, top-k, top-p (Holtzman et al., arXiv:1904.09751).
#pragma once

#include <cstdint>
#include <span>

namespace ds::infer {

struct SamplingOptions {
  double temperature = 0;  // 0 = the likeliest token, lowest id on ties
  int64_t top_k = 0;       // 0 = all
  double top_p = 0;        // 0 = all
};

// Throws kInvalidArgument for options out of range.
void check_sampling(const SamplingOptions& options);

// `uniform` in [0, 1) decides. NaN logits throw kInternal.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

}  // namespace ds::infer
