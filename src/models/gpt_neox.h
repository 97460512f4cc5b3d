// GPT-NeoX (Black et al., arXiv:2204.06745; also Pythia): layer norm, partial rotary positions,
// attention and MLP in parallel or one after the other.
#pragma once

#include "models/architecture.h"

namespace ds::models {

std::unique_ptr<Architecture> make_gpt_neox(const Json& config);

}  // namespace ds::models
