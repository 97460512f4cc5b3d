// Llama (Touvron et al., arXiv:2302.13971) and its kin: RMS norm, rotary positions, grouped keys
// and values, gated MLP. Mistral (arXiv:2310.06825) has a sliding window, Qwen2 (arXiv:2407.10671)
// biases on queries, keys and values, Qwen3 (arXiv:2505.09388) and OLMo 2 (arXiv:2501.00656) norms
// of queries and keys, OLMo 2 norms of what attention and MLP give. Mixtral (arXiv:2401.04088),
// Qwen2-MoE, Qwen3-MoE and OLMoE (arXiv:2409.02060) have experts in place of the MLP.
#pragma once

#include "models/architecture.h"

namespace ds::models {

std::unique_ptr<Architecture> make_llama(const Json& config);
std::unique_ptr<Architecture> make_mistral(const Json& config);
std::unique_ptr<Architecture> make_mixtral(const Json& config);
std::unique_ptr<Architecture> make_qwen2(const Json& config);
std::unique_ptr<Architecture> make_qwen2_moe(const Json& config);
std::unique_ptr<Architecture> make_qwen3(const Json& config);
std::unique_ptr<Architecture> make_qwen3_moe(const Json& config);
std::unique_ptr<Architecture> make_olmo2(const Json& config);
std::unique_ptr<Architecture> make_olmoe(const Json& config);

}  // namespace ds::models
