// The groups of ranks between which training state is spread: who holds one copy of it together,
// who holds the same piece, and who is near.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace ds::zero {

struct GroupSizes {
  int shard = 0;      // consecutive ranks that hold one copy together (MiCS); 0: all ranks
  int secondary = 1;  // consecutive ranks that hold a second copy together (hpZ); 1: there is none
};

// Throws kConfig where the sizes do not divide the ranks.
void check_group_sizes(const GroupSizes& sizes, int world);

// Two ways through a group whose ranks sit on several nodes, the same number on each: first among
// the ranks of a node and then among those of equal place on every node, or the reverse.
struct NodeGroups {
  std::shared_ptr<Communicator> node;    // in the order of ranks
  std::shared_ptr<Communicator> across;  // in the order of nodes
  std::vector<int> ranks;                // of the group: [node][place]
  int rank_at(int node_index, int place) const {
    return ranks[static_cast<size_t>(node_index * node->size() + place)];
  }
};

struct ShareGroups {
  std::shared_ptr<Communicator> all;
  std::shared_ptr<Communicator> shard;      // `all` where there is one copy
  std::shared_ptr<Communicator> replicas;   // null where there is one copy
  std::shared_ptr<Communicator> secondary;  // null where there is none
  std::shared_ptr<NodeGroups> nodes;        // of `shard`; null unless wanted and possible
};

// Collective.
ShareGroups make_share_groups(const std::shared_ptr<Device>& device,
                              const std::shared_ptr<Communicator>& all, const GroupSizes& sizes,
                              bool want_nodes);

}  // namespace ds::zero
