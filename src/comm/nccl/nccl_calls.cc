// What each collective is in calls of NCCL, and what it counts as.
#include <algorithm>

#include "comm/logger.h"
#include "comm/nccl/nccl_communicator.h"

namespace ds::comm {
namespace {

std::byte* at(const Tensor& tensor, int64_t bytes) {
  return static_cast<std::byte*>(tensor.raw()) + bytes;
}

// Bytes that a rank sends to a peer, in a pairwise exchange.
int64_t bytes_to(const NcclOperation& operation, int rank, int peer, int size) {
  const Record& record = operation.record;
  const int64_t element = dtype_size(static_cast<DType>(record.dtype));
  const bool peer_is_root = peer == record.root, is_root = rank == record.root;
  switch (record.kind) {
    case Collective::kAllReduce:
      return (part_of(record.count, peer, size, element).size() +
              part_of(record.count, rank, size, element).size()) *
             element;
    case Collective::kReduce:
    case Collective::kGather:
      return peer_is_root ? record.count * element : 0;
    case Collective::kSend:
      return peer == operation.peer ? record.count * element : 0;
    case Collective::kBroadcast:
    case Collective::kScatter:
      return is_root ? record.count * element : 0;
    case Collective::kAllGatherV:
      return operation.input_bytes;
    case Collective::kAllToAllV:
      return operation.input_counts[static_cast<size_t>(peer)] * element;
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kAllToAll:
      return record.count * element;
    default:
      return 0;
  }
}

}  // namespace

void NcclCommunicator::count(const NcclOperation& operation) {
  Traffic sent{.calls = 1};
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const bool near = topology().node_of[static_cast<size_t>(peer)] == topology().node;
    sent.add_block(bytes_to(operation, rank(), peer, size()), near);
  }
  traffic_->add(operation.record.kind, sent);
  if (!logger_) return;
  const std::chrono::duration<double> took = Clock::now() - operation.called;
  logger_->record(operation.record.kind, operation.told_bytes, took.count(), size(),
                  sent.within_node, sent.across_nodes);
}

// Called inside a group of NCCL.
void NcclCommunicator::call_nccl(const NcclOperation& operation) {
  const NcclChannel& to = *channel_;
  const nccl::Library& nccl = to.library();
  const Record& record = operation.record;
  const auto dtype = static_cast<DType>(record.dtype);
  const auto count = static_cast<size_t>(record.count);
  const size_t bytes = count * static_cast<size_t>(dtype_size(dtype));
  const nccl::Type type = nccl::reduced_type(dtype).value_or(nccl::kUint8);
  const nccl::Op op = nccl::op_of(record.op);
  void* const output = operation.output.raw();
  const void* const input = operation.input.raw();
  const bool counted =
      record.kind == Collective::kAllGatherV || record.kind == Collective::kAllToAllV;
  if (count == 0 && !counted) return;  // on every rank alike
  switch (record.kind) {
    case Collective::kAllReduce:
      return to.check(nccl.all_reduce(input, output, count, type, op, to.comm(), to.native()),
                      "ncclAllReduce");
    case Collective::kReduce:
      return to.check(
          nccl.reduce(input, output, count, type, op, record.root, to.comm(), to.native()),
          "ncclReduce");
    case Collective::kReduceScatter:
      return to.check(nccl.reduce_scatter(input, output, count, type, op, to.comm(), to.native()),
                      "ncclReduceScatter");
    // Movements are of bytes: every element type.
    case Collective::kAllGather:
      return to.check(nccl.all_gather(input, output, bytes, nccl::kUint8, to.comm(), to.native()),
                      "ncclAllGather");
    case Collective::kBroadcast:
      return to.check(
          nccl.broadcast(input, output, bytes, nccl::kUint8, record.root, to.comm(), to.native()),
          "ncclBroadcast");
    case Collective::kSend:
      return to.check(nccl.send(input, bytes, nccl::kUint8, operation.peer, to.comm(), to.native()),
                      "ncclSend");
    case Collective::kRecv:
      return to.check(
          nccl.recv(output, bytes, nccl::kUint8, operation.peer, to.comm(), to.native()),
          "ncclRecv");
    default:
      return exchange_pieces(operation);
  }
}

// The collectives that NCCL does not have: one message for each pair, and a copy for the own piece.
void NcclCommunicator::exchange_pieces(const NcclOperation& operation) {
  const NcclChannel& to = *channel_;
  const Record& record = operation.record;
  const int64_t element = dtype_size(static_cast<DType>(record.dtype));
  const int64_t piece = record.count * element;
  const bool is_root = record.root == rank();
  int64_t send_at = 0, receive_at = 0, own_from = -1, own_to = -1, own_bytes = 0;
  for (int peer = 0; peer < size(); ++peer) {
    const auto i = static_cast<size_t>(peer);
    int64_t sent = 0, received = 0;
    bool same_to_all = false;
    switch (record.kind) {
      case Collective::kAllGatherV:
        sent = operation.input.bytes();
        received = operation.output_counts[i] * element;
        same_to_all = true;
        break;
      case Collective::kAllToAll:
        sent = received = piece;
        break;
      case Collective::kAllToAllV:
        sent = operation.input_counts[i] * element;
        received = operation.output_counts[i] * element;
        break;
      case Collective::kGather:
        sent = peer == record.root ? piece : 0;
        received = is_root ? piece : 0;
        break;
      case Collective::kScatter:
        sent = is_root ? piece : 0;
        received = peer == record.root ? piece : 0;
        break;
      default:
        fail(Code::kInternal, "no pieces for ", collective_name(record.kind));
    }
    if (peer == rank()) {
      own_from = send_at;
      own_to = receive_at;
      own_bytes = sent;
    } else {
      if (sent > 0) {
        to.check(to.library().send(at(operation.input, send_at), static_cast<size_t>(sent),
                                   nccl::kUint8, peer, to.comm(), to.native()),
                 "ncclSend");
      }
      if (received > 0) {
        to.check(to.library().recv(at(operation.output, receive_at), static_cast<size_t>(received),
                                   nccl::kUint8, peer, to.comm(), to.native()),
                 "ncclRecv");
      }
    }
    if (!same_to_all) send_at += sent;
    receive_at += received;
  }
  if (own_bytes == 0) return;
  const std::byte* const from = at(operation.input, own_from);
  std::byte* const target = at(operation.output, own_to);
  if (from != target) to.device().copy(target, from, own_bytes, to.stream());
}

}  // namespace ds::comm
