// A ds_prompts of the caller, as lists of token ids.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ds.h"

namespace ds::capi {

class PromptsArgument {
 public:
  // Throws kInvalidArgument naming the member that is missing or wrong.
  explicit PromptsArgument(const ds_prompts* given);

  std::span<const std::span<const int32_t>> prompts() const { return prompts_; }
  int64_t at_once() const { return at_once_; }

 private:
  std::vector<int32_t> ids_;
  std::vector<std::span<const int32_t>> prompts_;
  int64_t at_once_;
};

}  // namespace ds::capi
