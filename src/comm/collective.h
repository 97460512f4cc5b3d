// The names and counters of collective operations.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ds {

enum class ReduceOp : uint8_t { kSum, kAverage, kMin, kMax };
std::string_view reduce_op_name(ReduceOp op) noexcept;

enum class Collective : uint8_t {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kAllGatherV,
  kBroadcast,
  kAllToAll,
  kAllToAllV,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kRecv,
  kSplit,
  kSharedTensor,
  kJoin,
  kFinalize,
};
inline constexpr int kCollectives = 17;
std::string_view collective_name(Collective kind) noexcept;

// What one rank sent in operations that ended well. Bytes are those of a pairwise exchange, in
// which every rank sends each peer what that peer needs, whatever the transport does; hierarchical
// transports count what they really send. Within: to ranks of the same (perhaps pretended) node.
struct Traffic {
  int64_t calls = 0;
  int64_t within_node = 0;
  int64_t across_nodes = 0;
  int64_t messages_across = 0;  // blocks of any bytes, each to one rank of another node

  Traffic& operator+=(const Traffic& other) {
    calls += other.calls;
    within_node += other.within_node;
    across_nodes += other.across_nodes;
    messages_across += other.messages_across;
    return *this;
  }
  // Adds a block to a rank of the same node, or of another one.
  void add_block(int64_t bytes, bool near) {
    (near ? within_node : across_nodes) += bytes;
    messages_across += !near && bytes > 0 ? 1 : 0;
  }
};
using TrafficTable = std::array<Traffic, kCollectives>;  // by Collective

}  // namespace ds
