// Llama (Touvron et al., arXiv:2302.13971) and its kin Mistral (arXiv:2310.06825: sliding window)
// and Qwen2 (arXiv:2407.10671: biases on queries, keys and values): RMS norm, rotary positions,
// grouped keys and values, gated MLP.
#pragma once

#include "models/architecture.h"

namespace ds::models {

std::unique_ptr<Architecture> make_llama(const Json& config);
std::unique_ptr<Architecture> make_mistral(const Json& config);
std::unique_ptr<Architecture> make_qwen2(const Json& config);

}  // namespace ds::models
