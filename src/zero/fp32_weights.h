// Weights of parameters that are computed with in fp32 where others are computed with in a lower
// type: own ones that a program registered so, such as adapters beside a bf16 base.
//
// They have buckets of their own. Masters, copies in the lower type and optimizer state cover them
// as they cover all others; where the masters do not lie as weights must (split, in pieces where
// weights are whole, or not in memory), fp32 copies follow them.
#pragma once

#include <vector>

#include "zero/state_arrays.h"

namespace ds::zero {

class Fp32Weights {
 public:
  explicit Fp32Weights(const StateArrays& arrays) : arrays_(arrays) {}

  // For the present layout and arrays; copies that ranks are to share where they share the arrays.
  void allocate();
  void drop() { copies_ = Tensor(); }
  // Whether there are copies; without them the masters are the weights.
  bool copied() const { return static_cast<bool>(copies_); }

  // Of a bucket that StateArrays::in_fp32: its weights whole, where they are, and this rank's
  // piece.
  Tensor whole(const Bucket& bucket) const;
  Tensor piece(const Bucket& bucket) const;

  // From the masters; weights that are whole on all ranks have to be gathered then.
  void write(const OpContext& ctx, const Bucket& bucket);
  void write_all(const OpContext& ctx, bool frozen_too);

 private:
  const StateArrays& arrays_;
  Tensor copies_;
  std::vector<int64_t> begins_;  // in copies_, by bucket
};

}  // namespace ds::zero
