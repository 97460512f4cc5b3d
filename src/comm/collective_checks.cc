#include "comm/collective_checks.h"

#include "base/text.h"

namespace ds::comm {

void check_tensor_for(const char* operation, const char* name, const Tensor& tensor, bool written) {
  DS_CHECK(tensor, Code::kInvalidArgument, operation, ": ", name, " is missing");
  DS_CHECK(tensor.contiguous(), Code::kInvalidArgument, operation, ": ", name, " of shape ",
           tensor.shape().text(), " is not contiguous; pass a packed copy");
  DS_CHECK(!written || !tensor.storage()->read_only(), Code::kState, operation, ": ", name,
           " is read-only");
}

void check_root(const char* operation, int root, int size) {
  DS_CHECK(root >= 0 && root < size, Code::kInvalidArgument, operation, ": root ", root,
           " is not in a group of ", size);
}

void check_peer(const char* operation, int peer, int tag, const GroupState& group) {
  DS_CHECK(peer >= 0 && peer < group.size(), Code::kInvalidArgument, operation, ": peer ", peer,
           " is not in a group of ", group.size());
  DS_CHECK(peer != group.rank(), Code::kInvalidArgument, operation, ": peer ", peer,
           " is this rank itself; copy instead");
  DS_CHECK(tag >= 0, Code::kInvalidArgument, operation, ": tag ", tag, " is negative");
}

void check_counts(const char* operation, const char* name, std::span<const int64_t> counts,
                  const Tensor& tensor, int size) {
  DS_CHECK(std::ssize(counts) == size, Code::kInvalidArgument, operation, ": ", name, " has ",
           counts.size(), " entries for a group of ", size);
  int64_t left = tensor.elements();
  for (size_t i = 0; i < counts.size(); ++i) {
    DS_CHECK(counts[i] >= 0 && counts[i] <= left, Code::kInvalidArgument, operation, ": ", name,
             "[", i, "] is ", counts[i], ", and ", left, " elements of ", tensor.elements(),
             " are left for it");
    left -= counts[i];
  }
  DS_CHECK(left == 0, Code::kInvalidArgument, operation, ": ", name, " leaves ", left, " of ",
           tensor.elements(), " elements over");
}

void check_reduction(const char* operation, const Tensor& tensor, ReduceOp op) {
  DS_CHECK(tensor.dtype() != DType::kBool, Code::kInvalidArgument, operation,
           ": bool tensors have no ", reduce_op_name(op), "; use uint8");
  DS_CHECK(op != ReduceOp::kAverage || dtype_is_floating(tensor.dtype()), Code::kInvalidArgument,
           operation, ": the average of ", dtype_name(tensor.dtype()),
           " is not a whole number; use a floating type");
}

void check_pieces(const char* operation, const Tensor& whole, const char* whole_name,
                  const Tensor& piece, const char* piece_name, int size) {
  DS_CHECK(whole.dtype() == piece.dtype(), Code::kInvalidArgument, operation, ": ", whole_name,
           " is ", dtype_name(whole.dtype()), " and ", piece_name, " is ",
           dtype_name(piece.dtype()), "; they must agree");
  // Compared by division: the product may not fit.
  DS_CHECK(whole.elements() % size == 0 && whole.elements() / size == piece.elements(),
           Code::kInvalidArgument, operation, ": ", whole_name, " has ", whole.elements(),
           " elements, which is not ", size, " times the ", piece.elements(), " of ", piece_name);
}

void check_same_dtype(const char* operation, const Tensor& output, const Tensor& input) {
  DS_CHECK(output.dtype() == input.dtype(), Code::kInvalidArgument, operation, ": output is ",
           dtype_name(output.dtype()), " and input is ", dtype_name(input.dtype()),
           "; they must agree");
}

void check_deadline(const char* operation, const CollectiveOptions& options) {
  DS_CHECK(!options.deadline || options.deadline->count() > 0, Code::kInvalidArgument, operation,
           ": the deadline must be positive");
}

}  // namespace ds::comm
