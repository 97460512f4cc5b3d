// The ranks among which tensors are cut, as an optimizer that needs whole ones sees them: LAMB adds
// norms up over them, Muon brings the parts of a matrix together. Tensors of a model may be cut
// among different ranks, and have a group for each.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace ds::optim {

// Elements of a tensor, counted from its first one.
struct OwnedRange {
  int64_t begin = 0;
  int64_t end = 0;
};

class ShardGroup {
 public:
  virtual ~ShardGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Those whose parts its ranks own, ascending.
  virtual std::span<const size_t> tensors() const = 0;
  // What a rank owns of one of them. Ranks own parts in their order, which together are the tensor.
  virtual OwnedRange part(size_t tensor, int rank) const = 0;

  // Every rank calls the following ones alike.

  // Replaces each word by its sum over the ranks.
  virtual void sum(std::span<int64_t> words) = 0;
  // Piece j of the fp32 `sent` of rank i becomes piece i of `received` on rank j; counts in
  // elements, by rank.
  virtual void exchange(const Tensor& received, std::span<const int64_t> received_counts,
                        const Tensor& sent, std::span<const int64_t> sent_counts) = 0;
};

// Each tensor is of one group, or of none: then the rank that has a part of it has all.
using ShardGroups = std::vector<std::shared_ptr<ShardGroup>>;

// Whether several ranks own parts of a tensor; every rank says the same.
inline bool is_cut(const ShardGroup& shard_group, size_t tensor) {
  int owners = 0;
  for (int rank = 0; rank < shard_group.size(); ++rank) {
    const OwnedRange part = shard_group.part(tensor, rank);
    owners += part.begin < part.end ? 1 : 0;
  }
  return owners > 1;
}

}  // namespace ds::optim
