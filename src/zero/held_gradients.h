// Whole gradients on every rank that are not reduced yet: the caller's of the open micro batch,
// where the step's lie elsewhere, and those of backward while steps are not synchronized.
#pragma once

#include "zero/state_arrays.h"

namespace ds::zero {

class HeldGradients {
 public:
  explicit HeldGradients(const StateArrays& arrays) : arrays_(arrays) {}

  // Collective: room for them, of zeros, in memory that the ranks of a host share.
  void allocate(DType type);
  void free() { all_ = Tensor(); }
  explicit operator bool() const { return static_cast<bool>(all_); }
  // Over the flat space; and one of them.
  const Tensor& all() const { return all_; }
  Tensor view(nn::ParamId id) const { return arrays_.view(all_, id); }
  void clear(const OpContext& ctx);

  // Every rank: reduces them and adds them to `sums`, which holds what this rank keeps. On the host
  // they arrive later (HostStore::finish_arrivals).
  void reduce_into(const OpContext& ctx, ReduceOp op, optim::FlatTensor& sums);

 private:
  Tensor kept(const Bucket& bucket) const;
  void add_kept(const OpContext& ctx, const Bucket& bucket, optim::FlatTensor& sums) const;

  const StateArrays& arrays_;
  Tensor all_;
};

// What a rank keeps of a bucket's gradients.
FlatRange kept_range(const optim::FlatTensor& gradients, const Bucket& bucket);

}  // namespace ds::zero
