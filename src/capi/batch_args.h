// A ds_batch of the caller: its tensors, entered for the length of a call.
#pragma once

#include <array>
#include <optional>

#include "capi/tensor_object.h"

namespace ds::capi {

class BatchArgument {
 public:
  // Throws kInvalidArgument naming the member that is missing or wrong. Without `with_labels` there
  // must be none.
  BatchArgument(const ds_batch* given, bool with_labels);

  const Tensor& ids() const { return tensors_[0]; }
  const Tensor& labels() const { return tensors_[1]; }
  const Tensor& attention_mask() const { return tensors_[2]; }
  const Tensor& segments() const { return tensors_[3]; }
  const Tensor& token_types() const { return tensors_[4]; }

 private:
  static constexpr size_t kMembers = 5;
  std::array<std::optional<Entered<TensorObject>>, kMembers> entered_;
  std::array<Tensor, kMembers> tensors_;  // empty where none was given
};

}  // namespace ds::capi
