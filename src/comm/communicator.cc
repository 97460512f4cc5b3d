#include "comm/communicator.h"

#include <algorithm>

#include "base/text.h"

namespace ds {

std::string_view reduce_op_name(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAverage:
      return "average";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
  }
  return "unknown";
}

Communicator::Communicator(int rank, int size, std::chrono::milliseconds deadline)
    : rank_(rank), size_(size), deadline_(deadline) {
  DS_CHECK(size >= 1 && rank >= 0 && rank < size, Code::kInvalidArgument, "rank ", rank,
           " is not in a group of ", size);
}

void Communicator::check_active(const char* operation) const {
  switch (state()) {
    case State::kActive:
      return;
    case State::kFinalized:
      fail(Code::kState, operation, ": the communicator was finalized; make a new one");
    case State::kAborted: {
      const std::lock_guard lock(reason_mutex_);
      fail(Code::kAborted, operation, ": the communicator was aborted",
           abort_reason_.empty() ? "" : ": ", abort_reason_);
    }
  }
}

void Communicator::check_tensor_for(const char* operation, const char* name, const Tensor& tensor,
                                    bool written) const {
  DS_CHECK(tensor, Code::kInvalidArgument, operation, ": ", name, " is missing");
  DS_CHECK(tensor.contiguous(), Code::kInvalidArgument, operation, ": ", name, " of shape ",
           tensor.shape().text(), " is not contiguous; pass a packed copy");
  DS_CHECK(!written || !tensor.storage()->read_only(), Code::kState, operation, ": ", name,
           " is read-only");
}

namespace {

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

void check_deadline(const char* operation, const CollectiveOptions& options) {
  DS_CHECK(!options.deadline || options.deadline->count() > 0, Code::kInvalidArgument, operation,
           ": the deadline must be positive");
}

}  // namespace

WorkPtr Communicator::all_reduce(const Tensor& tensor, ReduceOp op,
                                 const CollectiveOptions& options) {
  static constexpr char kName[] = "all_reduce";
  check_deadline(kName, options);
  check_tensor_for(kName, "tensor", tensor, true);
  check_reduction(kName, tensor, op);
  check_active(kName);
  return start_all_reduce(tensor, op, options);
}

WorkPtr Communicator::reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op,
                                     const CollectiveOptions& options) {
  static constexpr char kName[] = "reduce_scatter";
  check_deadline(kName, options);
  check_tensor_for(kName, "output", output, true);
  check_tensor_for(kName, "input", input, false);
  check_reduction(kName, input, op);
  check_pieces(kName, input, "input", output, "output", size_);
  check_active(kName);
  return start_reduce_scatter(output, input, op, options);
}

WorkPtr Communicator::all_gather(const Tensor& output, const Tensor& input,
                                 const CollectiveOptions& options) {
  static constexpr char kName[] = "all_gather";
  check_deadline(kName, options);
  check_tensor_for(kName, "output", output, true);
  check_tensor_for(kName, "input", input, false);
  check_pieces(kName, output, "output", input, "input", size_);
  check_active(kName);
  return start_all_gather(output, input, options);
}

WorkPtr Communicator::broadcast(const Tensor& tensor, int root, const CollectiveOptions& options) {
  static constexpr char kName[] = "broadcast";
  check_deadline(kName, options);
  check_tensor_for(kName, "tensor", tensor, rank_ != root);
  DS_CHECK(root >= 0 && root < size_, Code::kInvalidArgument, kName, ": root ", root,
           " is not in a group of ", size_);
  check_active(kName);
  return start_broadcast(tensor, root, options);
}

void Communicator::barrier(const CollectiveOptions& options) {
  check_deadline("barrier", options);
  check_active("barrier");
  do_barrier(options);
}

std::shared_ptr<Communicator> Communicator::split(int color, int key,
                                                  const CollectiveOptions& options) {
  check_deadline("split", options);
  check_active("split");
  return do_split(color, key, options);
}

void Communicator::finalize() {
  if (state() == State::kFinalized) return;
  check_active("finalize");
  do_finalize();
  // An abort that arrives while the group ends wins.
  State expected = State::kActive;
  if (!state_.compare_exchange_strong(expected, State::kFinalized)) check_active("finalize");
}

void Communicator::abort(std::string_view reason) noexcept {
  {
    const std::lock_guard lock(reason_mutex_);
    State expected = State::kActive;
    if (!state_.compare_exchange_strong(expected, State::kAborted)) return;
    try {
      abort_reason_ = reason;
    } catch (...) {  // no memory for the reason: the state says enough
    }
  }
  do_abort();
}

}  // namespace ds
