// What collectives ask of their arguments, the same on every rank. All throw kInvalidArgument
// unless they say otherwise; messages begin with the name of the operation.
#pragma once

#include <cstdint>
#include <span>

#include "comm/collective.h"
#include "comm/communicator.h"

namespace ds::comm {

void check_deadline(const char* operation, const CollectiveOptions& options);
// Given, packed and, where it is `written`, not read-only (kState).
void check_tensor_for(const char* operation, const char* name, const Tensor& tensor, bool written);
void check_root(const char* operation, int root, int size);
void check_peer(const char* operation, int peer, int tag, const GroupState& group);
// One count for each rank, which share out the tensor.
void check_counts(const char* operation, const char* name, std::span<const int64_t> counts,
                  const Tensor& tensor, int size);
void check_same_dtype(const char* operation, const Tensor& output, const Tensor& input);
void check_reduction(const char* operation, const Tensor& tensor, ReduceOp op);
// `whole` is `size` times `piece`.
void check_pieces(const char* operation, const Tensor& whole, const char* whole_name,
                  const Tensor& piece, const char* piece_name, int size);

}  // namespace ds::comm
