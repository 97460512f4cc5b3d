#include "zero/share_groups.h"

#include <algorithm>

#include "tensor/transfer.h"

namespace ds::zero {
namespace {

constexpr const char* kPath = "configuration: /zero_optimization/";

// Null where nodes differ in size, where there is one, or where ranks of a node do not follow each
// other.
std::shared_ptr<NodeGroups> make_node_groups(Communicator& group) {
  const Topology& where = group.topology();
  if (where.nodes < 2 || group.size() % where.nodes != 0) return nullptr;
  const int places = group.size() / where.nodes;
  auto out = std::make_shared<NodeGroups>();
  for (int node = 0; node < where.nodes; ++node) {
    if (std::ranges::count(where.node_of, node) != places) return nullptr;
    for (int rank = 0; rank < group.size(); ++rank) {
      if (where.node_of[static_cast<size_t>(rank)] == node) out->ranks.push_back(rank);
    }
  }
  out->node = group.split(where.node, group.rank(), {.label = "ranks of a node"});
  out->across = group.split(where.local_rank, where.node, {.label = "equal places of nodes"});
  return out;
}

}  // namespace

void check_group_sizes(const GroupSizes& sizes, int world) {
  DS_CHECK(sizes.shard == 0 || world % sizes.shard == 0, Code::kConfig, kPath,
           "mics_shard_size: ", sizes.shard, " does not divide the ", world,
           " data-parallel ranks; use a divisor, or -1");
  DS_CHECK(world % sizes.secondary == 0, Code::kConfig, kPath,
           "zero_hpz_partition_size: ", sizes.secondary, " does not divide the ", world,
           " data-parallel ranks; use a divisor, such as the ranks of a node");
}

ShareGroups make_share_groups(const std::shared_ptr<Device>& device,
                              const std::shared_ptr<Communicator>& all, const GroupSizes& sizes,
                              bool want_nodes) {
  check_group_sizes(sizes, all->size());
  const int rank = all->rank();
  ShareGroups out;
  out.all = out.shard = all;
  if (sizes.shard > 0 && sizes.shard < all->size()) {
    out.shard = all->split(rank / sizes.shard, rank, {.label = "shard group"});
    out.replicas = all->split(rank % sizes.shard, rank, {.label = "replicas"});
  }
  if (sizes.secondary > 1) {
    out.secondary = all->split(rank / sizes.secondary, rank, {.label = "secondary shards"});
  }
  if (!want_nodes) return out;
  out.nodes = make_node_groups(*out.shard);
  // All shard groups go the same way, or none does.
  const Tensor possible =
      Tensor::zeros(host_memory_of(device), DType::kInt32, {1}, MemoryTag::kCommunication);
  *possible.data<int32_t>() = out.nodes ? 1 : 0;
  all->all_reduce(possible, ReduceOp::kMin, {.label = "ways by node", .blocking = true})->wait();
  if (*possible.data<int32_t>() == 0) out.nodes.reset();
  return out;
}

}  // namespace ds::zero
