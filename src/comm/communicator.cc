#include "comm/communicator.h"

#include <climits>

#include "comm/collective_checks.h"

namespace ds {

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
  comm::check_deadline(kName, options);
  comm::check_tensor_for(kName, "tensor", tensor, true);
  comm::check_reduction(kName, tensor, op);
  check_active(kName);
  return start(call_of(Collective::kAllReduce, op, tensor, tensor), options);
}

WorkPtr Communicator::reduce(const Tensor& tensor, ReduceOp op, int root,
                             const CollectiveOptions& options) {
  static constexpr char kName[] = "reduce";
  comm::check_deadline(kName, options);
  comm::check_root(kName, root, size());
  comm::check_tensor_for(kName, "tensor", tensor, rank() == root);
  comm::check_reduction(kName, tensor, op);
  check_active(kName);
  return start(call_of(Collective::kReduce, op, tensor, tensor, root), options);
}

WorkPtr Communicator::reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op,
                                     const CollectiveOptions& options) {
  static constexpr char kName[] = "reduce_scatter";
  comm::check_deadline(kName, options);
  comm::check_tensor_for(kName, "output", output, true);
  comm::check_tensor_for(kName, "input", input, false);
  comm::check_reduction(kName, input, op);
  comm::check_pieces(kName, input, "input", output, "output", size());
  check_active(kName);
  return start(call_of(Collective::kReduceScatter, op, output, input), options);
}

WorkPtr Communicator::all_gather(const Tensor& output, const Tensor& input,
                                 const CollectiveOptions& options) {
  static constexpr char kName[] = "all_gather";
  comm::check_deadline(kName, options);
  comm::check_tensor_for(kName, "output", output, true);
  comm::check_tensor_for(kName, "input", input, false);
  comm::check_pieces(kName, output, "output", input, "input", size());
  check_active(kName);
  return start(call_of(Collective::kAllGather, ReduceOp::kSum, output, input), options);
}

WorkPtr Communicator::all_gather_v(const Tensor& output, const Tensor& input,
                                   std::span<const int64_t> counts,
                                   const CollectiveOptions& options) {
  static constexpr char kName[] = "all_gather_v";
  comm::check_deadline(kName, options);
  comm::check_tensor_for(kName, "output", output, true);
  comm::check_tensor_for(kName, "input", input, false);
  comm::check_same_dtype(kName, output, input);
  comm::check_counts(kName, "counts", counts, output, size());
  DS_CHECK(counts[static_cast<size_t>(rank())] == input.elements(), Code::kInvalidArgument, kName,
           ": counts[", rank(), "] is ", counts[static_cast<size_t>(rank())],
           " and the input of this rank has ", input.elements(), " elements");
  check_active(kName);
  Call call = call_of(Collective::kAllGatherV, ReduceOp::kSum, output, input);
  call.output_counts.assign(counts.begin(), counts.end());
  return start(std::move(call), options);
}

WorkPtr Communicator::broadcast(const Tensor& tensor, int root, const CollectiveOptions& options) {
  static constexpr char kName[] = "broadcast";
  comm::check_deadline(kName, options);
  comm::check_tensor_for(kName, "tensor", tensor, rank() != root);
  comm::check_root(kName, root, size());
  check_active(kName);
  return start(call_of(Collective::kBroadcast, ReduceOp::kSum, tensor, tensor, root), options);
}

WorkPtr Communicator::all_to_all(const Tensor& output, const Tensor& input,
                                 const CollectiveOptions& options) {
  static constexpr char kName[] = "all_to_all";
  comm::check_deadline(kName, options);
  comm::check_tensor_for(kName, "output", output, true);
  comm::check_tensor_for(kName, "input", input, false);
  comm::check_same_dtype(kName, output, input);
  DS_CHECK(output.elements() == input.elements() && input.elements() % size() == 0,
           Code::kInvalidArgument, kName, ": output has ", output.elements(),
           " elements and input ", input.elements(), "; both must have the same multiple of ",
           size());
  check_active(kName);
  return start(call_of(Collective::kAllToAll, ReduceOp::kSum, output, input), options);
}

WorkPtr Communicator::all_to_all_v(const Tensor& output, const Tensor& input,
                                   std::span<const int64_t> output_counts,
                                   std::span<const int64_t> input_counts,
                                   const CollectiveOptions& options) {
  static constexpr char kName[] = "all_to_all_v";
  comm::check_deadline(kName, options);
  comm::check_tensor_for(kName, "output", output, true);
  comm::check_tensor_for(kName, "input", input, false);
  comm::check_same_dtype(kName, output, input);
  comm::check_counts(kName, "output_counts", output_counts, output, size());
  comm::check_counts(kName, "input_counts", input_counts, input, size());
  const auto self = static_cast<size_t>(rank());
  DS_CHECK(output_counts[self] == input_counts[self], Code::kInvalidArgument, kName,
           ": output_counts[", rank(), "] is ", output_counts[self], " and input_counts[", rank(),
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
  comm::check_deadline(kName, options);
  comm::check_root(kName, root, size());
  comm::check_tensor_for(kName, "input", input, false);
  if (rank() == root) {
    comm::check_tensor_for(kName, "output", output, true);
    comm::check_pieces(kName, output, "output", input, "input", size());
  }
  check_active(kName);
  return start(
      call_of(Collective::kGather, ReduceOp::kSum, rank() == root ? output : Tensor(), input, root),
      options);
}

WorkPtr Communicator::scatter(const Tensor& output, const Tensor& input, int root,
                              const CollectiveOptions& options) {
  static constexpr char kName[] = "scatter";
  comm::check_deadline(kName, options);
  comm::check_root(kName, root, size());
  comm::check_tensor_for(kName, "output", output, true);
  if (rank() == root) {
    comm::check_tensor_for(kName, "input", input, false);
    comm::check_pieces(kName, input, "input", output, "output", size());
  }
  check_active(kName);
  return start(call_of(Collective::kScatter, ReduceOp::kSum, output,
                       rank() == root ? input : Tensor(), root),
               options);
}

WorkPtr Communicator::send(const Tensor& tensor, int peer, int tag,
                           const CollectiveOptions& options) {
  comm::check_deadline("send", options);
  comm::check_peer("send", peer, tag, *this);
  comm::check_tensor_for("send", "tensor", tensor, false);
  check_active("send");
  Call call = call_of(Collective::kSend, ReduceOp::kSum, Tensor(), tensor, peer);
  call.tag = tag;
  return start(std::move(call), options);
}

WorkPtr Communicator::recv(const Tensor& tensor, int peer, int tag,
                           const CollectiveOptions& options) {
  comm::check_deadline("recv", options);
  comm::check_peer("recv", peer, tag, *this);
  comm::check_tensor_for("recv", "tensor", tensor, true);
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
  comm::check_deadline("barrier", options);
  check_active("barrier");
  return do_barrier(options);
}

Tensor Communicator::shared_tensor(const std::shared_ptr<Device>& device, DType dtype,
                                   const Shape& shape, MemoryTag tag,
                                   const CollectiveOptions& options) {
  comm::check_deadline("shared_tensor", options);
  DS_CHECK(device != nullptr && (device->kind() == DeviceKind::kCpu || moves_gpu_memory()),
           Code::kUnsupported,
           "shared_tensor: memory shared by processes is that of the CPU device");
  const int64_t elements = shape.elements(), most = INT64_MAX / 16 / size();
  DS_CHECK(elements <= most / dtype_size(dtype), Code::kOutOfMemory, "shared_tensor: ", elements,
           " elements of ", dtype_name(dtype), " on ", size(), " ranks fit no address space");
  check_active("shared_tensor");
  return do_shared_tensor(device, dtype, shape, tag, options);
}

std::shared_ptr<Communicator> Communicator::split(int color, int key,
                                                  const CollectiveOptions& options) {
  comm::check_deadline("split", options);
  check_active("split");
  std::shared_ptr<Communicator> group = do_split(color, key, options);
  if (group) group->set_name(options.label);
  return group;
}

void Communicator::join(const CollectiveOptions& options) {
  comm::check_deadline("join", options);
  check_active("join");
  do_join(options);
}

void Communicator::finalize() {
  if (state() == State::kFinalized) return;
  check_active("finalize");
  do_finalize();
  // An abort that arrives while the group ends wins.
  if (!mark_finalized()) check_active("finalize");
}

void Communicator::abort(std::string_view reason) noexcept {
  if (state() != State::kActive) return;
  mark_failed(Code::kAborted, reason);
  if (state() == State::kAborted) do_abort(reason);
}

}  // namespace ds
