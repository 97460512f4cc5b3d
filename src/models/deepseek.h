// DeepSeek-V2 (arXiv:2405.04434) and DeepSeek-V3 (arXiv:2412.19437): latent attention, dense layers
// first and then experts beside a shared one, which a router chooses by groups.
#pragma once

#include "models/architecture.h"

namespace ds::models {

std::unique_ptr<Architecture> make_deepseek_v2(const Json& config);
std::unique_ptr<Architecture> make_deepseek_v3(const Json& config);

}  // namespace ds::models
