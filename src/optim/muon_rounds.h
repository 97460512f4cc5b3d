// Which tensors Muon treats as matrices, and, where ranks share them, who orthogonalises which.
#pragma once

#include <vector>

#include "optim/optimizer.h"

namespace ds::optim {

bool is_muon_matrix(const TensorPlace& place);

// The matrices of a tensor: [count, rows, columns].
Shape muon_stack(const Shape& shape);

// Matrices that are brought together at a time, and who orthogonalises which. `tensors` are in the
// order of their owners.
struct MuonRound {
  std::vector<size_t> tensors;
  std::vector<int> owners;        // parallel to them
  std::vector<int64_t> sent;      // elements, by rank: this rank's parts of what that one owns
  std::vector<int64_t> received;  // and that one's parts of what this rank owns
};

// Of the group's tensors, numbered as in `places`. The same on every rank but for `sent` and
// `received`.
std::vector<MuonRound> muon_rounds(const std::vector<TensorPlace>& places,
                                   const ShardGroup& shard_group);

}  // namespace ds::optim
