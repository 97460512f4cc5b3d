// Token ids between tensors and vectors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace ds::capi {

// int32 or int64 tensor [count] to a list; ids must fit int32.
std::vector<int32_t> id_list(const Tensor& tensor, const char* parameter);

// A list as int32 tensor [count], in memory of its own.
Tensor id_tensor(std::span<const int32_t> ids);
// Numbers of tokens as int64 tensor [count], likewise.
Tensor count_tensor(std::span<const int64_t> counts);

}  // namespace ds::capi
