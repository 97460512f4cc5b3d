#include "comm/collective.h"

#include "comm/options.h"

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

std::string_view collective_name(Collective kind) noexcept {
  static constexpr std::array<std::string_view, kCollectives> kNames = {
      "all_reduce", "reduce",       "reduce_scatter", "all_gather", "all_gather_v", "broadcast",
      "all_to_all", "all_to_all_v", "gather",         "scatter",    "barrier",      "send",
      "recv",       "split",        "shared_tensor",  "join",       "finalize"};
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string_view transport_name(TransportKind kind) noexcept {
  switch (kind) {
    case TransportKind::kAuto:
      return "auto";
    case TransportKind::kSelf:
      return "self";
    case TransportKind::kShm:
      return "shm";
    case TransportKind::kSockets:
      return "sockets";
    case TransportKind::kHierarchical:
      return "hierarchical";
    case TransportKind::kMpi:
      return "mpi";
    case TransportKind::kNccl:
      return "nccl";
  }
  return "unknown";
}

}  // namespace ds
