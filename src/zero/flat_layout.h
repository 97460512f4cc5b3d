// Where every parameter lies in the flat spaces of weights, gradients and optimizer state, and
// which part of them a rank owns. ZeRO stages, offload and checkpoints read this one description.
#pragma once

#include <span>
#include <vector>

#include "nn/parameter.h"

namespace ds::zero {

// A range of the flat space, in elements.
struct FlatRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t elements() const { return end - begin; }
};

class FlatLayout {
 public:
  // Each parameter begins at a multiple of kAlign elements; gaps are zeros and stay zeros.
  static constexpr int64_t kAlign = 32;

  // Trainable parameters come first, and those that share a group and decay alike lie together, so
  // that an update is one pass over a long range.
  explicit FlatLayout(const nn::ParameterSet& parameters);

  int64_t elements() const { return elements_; }                      // all parameters, padded
  int64_t trainable_elements() const { return trainable_elements_; }  // the first so many
  FlatRange range(nn::ParamId id) const { return ranges_[static_cast<size_t>(id)]; }
  // Parameters in the order of the flat space.
  std::span<const nn::ParamId> order() const { return order_; }
  // The parameter that owns a flat index, kNoParam for padding.
  nn::ParamId parameter_at(int64_t index) const;

  // Equal parts of the trainable space, each a multiple of kAlign; the last may be shorter.
  FlatRange shard(int rank, int world) const;

 private:
  std::vector<FlatRange> ranges_;
  std::vector<nn::ParamId> order_;
  int64_t elements_ = 0;
  int64_t trainable_elements_ = 0;
};

}  // namespace ds::zero
