#include "comm/communicator.h"

#include <climits>

#include "base/text.h"

namespace ds {

Communicator::Communicator(int rank, int size, std::chrono::milliseconds deadline)
    : rank_(rank), size_(size), deadline_(deadline) {
  DS_CHECK(size >= 1 && rank >= 0 && rank < size, Code::kInvalidArgument, "rank ", rank,
           " is not in a group of ", size);
}

void Communicator::check_active(std::string_view operation) const {
  const State now = state();
  if (now == State::kActive) return;
  if (now == State::kFinalized) {
    fail(Code::kState, operation, ": the communicator was finalized; make a new one", in_group());
  }
  const std::lock_guard lock(reason_mutex_);
  if (now == State::kFailed)
    fail(Code::kComm, operation, ": the group failed before: ", reason_, in_group());
  fail(Code::kAborted, operation, ": the communicator was aborted", reason_.empty() ? "" : ": ",
       reason_, in_group());
}

void Communicator::check_tensor_for(const char* operation, const char* name, const Tensor& tensor,
                                    bool written) const {
  DS_CHECK(tensor, Code::kInvalidArgument, operation, ": ", name, " is missing");
  DS_CHECK(tensor.contiguous(), Code::kInvalidArgument, operation, ": ", name, " of shape ",
           tensor.shape().text(), " is not contiguous; pass a packed copy");
  DS_CHECK(!written || !tensor.storage()->read_only(), Code::kState, operation, ": ", name,
           " is read-only");
}

void Communicator::check_root(const char* operation, int root) const {
  DS_CHECK(root >= 0 && root < size_, Code::kInvalidArgument, operation, ": root ", root,
           " is not in a group of ", size_);
}

void Communicator::check_peer(const char* operation, int peer, int tag) const {
  DS_CHECK(peer >= 0 && peer < size_, Code::kInvalidArgument, operation, ": peer ", peer,
           " is not in a group of ", size_);
  DS_CHECK(peer != rank_, Code::kInvalidArgument, operation, ": peer ", peer,
           " is this rank itself; copy instead");
  DS_CHECK(tag >= 0, Code::kInvalidArgument, operation, ": tag ", tag, " is negative");
}

void Communicator::check_counts(const char* operation, const char* name,
                                std::span<const int64_t> counts, const Tensor& tensor) const {
  DS_CHECK(std::ssize(counts) == size_, Code::kInvalidArgument, operation, ": ", name, " has ",
           counts.size(), " entries for a group of ", size_);
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

void check_same_dtype(const char* operation, const Tensor& output, const Tensor& input) {
  DS_CHECK(output.dtype() == input.dtype(), Code::kInvalidArgument, operation, ": output is ",
           dtype_name(output.dtype()), " and input is ", dtype_name(input.dtype()),
           "; they must agree");
}

void check_deadline(const char* operation, const CollectiveOptions& options) {
  DS_CHECK(!options.deadline || options.deadline->count() > 0, Code::kInvalidArgument, operation,
           ": the deadline must be positive");
}

}  // namespace

Communicator::Call Communicator::call_of(Collective kind, ReduceOp op, const Tensor& output,
                                         const Tensor& input, int root) {
  Call call;
  call.kind = kind;
  call.op = op;
  call.output = output;
  call.input = input;
  call.root = root;
  return call;
}

WorkPtr Communicator::all_reduce(const Tensor& tensor, ReduceOp op,
                                 const CollectiveOptions& options) {
  static constexpr char kName[] = "all_reduce";
  check_deadline(kName, options);
  check_tensor_for(kName, "tensor", tensor, true);
  check_reduction(kName, tensor, op);
  check_active(kName);
  return start(call_of(Collective::kAllReduce, op, tensor, tensor), options);
}

WorkPtr Communicator::reduce(const Tensor& tensor, ReduceOp op, int root,
                             const CollectiveOptions& options) {
  static constexpr char kName[] = "reduce";
  check_deadline(kName, options);
  check_root(kName, root);
  check_tensor_for(kName, "tensor", tensor, rank_ == root);
  check_reduction(kName, tensor, op);
  check_active(kName);
  return start(call_of(Collective::kReduce, op, tensor, tensor, root), options);
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
  return start(call_of(Collective::kReduceScatter, op, output, input), options);
}

WorkPtr Communicator::all_gather(const Tensor& output, const Tensor& input,
                                 const CollectiveOptions& options) {
  static constexpr char kName[] = "all_gather";
  check_deadline(kName, options);
  check_tensor_for(kName, "output", output, true);
  check_tensor_for(kName, "input", input, false);
  check_pieces(kName, output, "output", input, "input", size_);
  check_active(kName);
  return start(call_of(Collective::kAllGather, ReduceOp::kSum, output, input), options);
}

WorkPtr Communicator::all_gather_v(const Tensor& output, const Tensor& input,
                                   std::span<const int64_t> counts,
                                   const CollectiveOptions& options) {
  static constexpr char kName[] = "all_gather_v";
  check_deadline(kName, options);
  check_tensor_for(kName, "output", output, true);
  check_tensor_for(kName, "input", input, false);
  check_same_dtype(kName, output, input);
  check_counts(kName, "counts", counts, output);
  DS_CHECK(counts[static_cast<size_t>(rank_)] == input.elements(), Code::kInvalidArgument, kName,
           ": counts[", rank_, "] is ", counts[static_cast<size_t>(rank_)],
           " and the input of this rank has ", input.elements(), " elements");
  check_active(kName);
  Call call = call_of(Collective::kAllGatherV, ReduceOp::kSum, output, input);
  call.output_counts.assign(counts.begin(), counts.end());
  return start(std::move(call), options);
}

WorkPtr Communicator::broadcast(const Tensor& tensor, int root, const CollectiveOptions& options) {
  static constexpr char kName[] = "broadcast";
  check_deadline(kName, options);
  check_tensor_for(kName, "tensor", tensor, rank_ != root);
  check_root(kName, root);
  check_active(kName);
  return start(call_of(Collective::kBroadcast, ReduceOp::kSum, tensor, tensor, root), options);
}

WorkPtr Communicator::all_to_all(const Tensor& output, const Tensor& input,
                                 const CollectiveOptions& options) {
  static constexpr char kName[] = "all_to_all";
  check_deadline(kName, options);
  check_tensor_for(kName, "output", output, true);
  check_tensor_for(kName, "input", input, false);
  check_same_dtype(kName, output, input);
  DS_CHECK(output.elements() == input.elements() && input.elements() % size_ == 0,
           Code::kInvalidArgument, kName, ": output has ", output.elements(),
           " elements and input ", input.elements(), "; both must have the same multiple of ",
           size_);
  check_active(kName);
  return start(call_of(Collective::kAllToAll, ReduceOp::kSum, output, input), options);
}

WorkPtr Communicator::all_to_all_v(const Tensor& output, const Tensor& input,
                                   std::span<const int64_t> output_counts,
                                   std::span<const int64_t> input_counts,
                                   const CollectiveOptions& options) {
  static constexpr char kName[] = "all_to_all_v";
  check_deadline(kName, options);
  check_tensor_for(kName, "output", output, true);
  check_tensor_for(kName, "input", input, false);
  check_same_dtype(kName, output, input);
  check_counts(kName, "output_counts", output_counts, output);
  check_counts(kName, "input_counts", input_counts, input);
  const auto self = static_cast<size_t>(rank_);
  DS_CHECK(output_counts[self] == input_counts[self], Code::kInvalidArgument, kName,
           ": output_counts[", rank_, "] is ", output_counts[self], " and input_counts[", rank_,
           "] is ", input_counts[self], "; what this rank sends itself has one size");
  check_active(kName);
  Call call = call_of(Collective::kAllToAllV, ReduceOp::kSum, output, input);
  call.output_counts.assign(output_counts.begin(), output_counts.end());
  call.input_counts.assign(input_counts.begin(), input_counts.end());
  return start(std::move(call), options);
}

WorkPtr Communicator::gather(const Tensor& output, const Tensor& input, int root,
                             const CollectiveOptions& options) {
  static constexpr char kName[] = "gather";
  check_deadline(kName, options);
  check_root(kName, root);
  check_tensor_for(kName, "input", input, false);
  if (rank_ == root) {
    check_tensor_for(kName, "output", output, true);
    check_pieces(kName, output, "output", input, "input", size_);
  }
  check_active(kName);
  return start(
      call_of(Collective::kGather, ReduceOp::kSum, rank_ == root ? output : Tensor(), input, root),
      options);
}

WorkPtr Communicator::scatter(const Tensor& output, const Tensor& input, int root,
                              const CollectiveOptions& options) {
  static constexpr char kName[] = "scatter";
  check_deadline(kName, options);
  check_root(kName, root);
  check_tensor_for(kName, "output", output, true);
  if (rank_ == root) {
    check_tensor_for(kName, "input", input, false);
    check_pieces(kName, input, "input", output, "output", size_);
  }
  check_active(kName);
  return start(
      call_of(Collective::kScatter, ReduceOp::kSum, output, rank_ == root ? input : Tensor(), root),
      options);
}

WorkPtr Communicator::send(const Tensor& tensor, int peer, int tag,
                           const CollectiveOptions& options) {
  check_deadline("send", options);
  check_peer("send", peer, tag);
  check_tensor_for("send", "tensor", tensor, false);
  check_active("send");
  Call call = call_of(Collective::kSend, ReduceOp::kSum, Tensor(), tensor, peer);
  call.tag = tag;
  return start(std::move(call), options);
}

WorkPtr Communicator::recv(const Tensor& tensor, int peer, int tag,
                           const CollectiveOptions& options) {
  check_deadline("recv", options);
  check_peer("recv", peer, tag);
  check_tensor_for("recv", "tensor", tensor, true);
  check_active("recv");
  Call call = call_of(Collective::kRecv, ReduceOp::kSum, tensor, Tensor(), peer);
  call.tag = tag;
  return start(std::move(call), options);
}

void Communicator::barrier(const CollectiveOptions& options) {
  CollectiveOptions now = options;
  now.blocking = true;
  start_barrier(now)->wait();
}

WorkPtr Communicator::start_barrier(const CollectiveOptions& options) {
  check_deadline("barrier", options);
  check_active("barrier");
  return do_barrier(options);
}

Tensor Communicator::shared_tensor(const std::shared_ptr<Device>& device, DType dtype,
                                   const Shape& shape, MemoryTag tag,
                                   const CollectiveOptions& options) {
  check_deadline("shared_tensor", options);
  DS_CHECK(device != nullptr && (device->kind() == DeviceKind::kCpu || moves_gpu_memory()),
           Code::kUnsupported,
           "shared_tensor: memory shared by processes is that of the CPU device");
  const int64_t elements = shape.elements(), most = INT64_MAX / 16 / size_;
  DS_CHECK(elements <= most / dtype_size(dtype), Code::kOutOfMemory, "shared_tensor: ", elements,
           " elements of ", dtype_name(dtype), " on ", size_, " ranks fit no address space");
  check_active("shared_tensor");
  return do_shared_tensor(device, dtype, shape, tag, options);
}

std::shared_ptr<Communicator> Communicator::split(int color, int key,
                                                  const CollectiveOptions& options) {
  check_deadline("split", options);
  check_active("split");
  std::shared_ptr<Communicator> group = do_split(color, key, options);
  if (group) group->name_ = options.label;
  return group;
}

std::string Communicator::in_group() const {
  return name_.empty() ? std::string() : str_cat(" (group \"", printable(name_), "\")");
}

void Communicator::join(const CollectiveOptions& options) {
  check_deadline("join", options);
  check_active("join");
  do_join(options);
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
  if (state() != State::kActive) return;
  mark_failed(Code::kAborted, reason);
  if (state() == State::kAborted) do_abort(reason);
}

void Communicator::mark_failed(Code code, std::string_view text) noexcept {
  const std::lock_guard lock(reason_mutex_);
  State expected = State::kActive;
  const State failed = code == Code::kAborted ? State::kAborted : State::kFailed;
  if (!state_.compare_exchange_strong(expected, failed)) return;
  try {
    reason_ = text;
  } catch (...) {  // no memory for the reason: the state says enough
  }
}

}  // namespace ds
