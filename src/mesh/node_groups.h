// The ranks of a group by the nodes that they sit on, and the groups of those that are near and of
// those of equal place.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "mesh/mesh.h"

namespace ds {

// Two ways through a group whose ranks sit on several nodes, the same number on each: first among
// the ranks of a node and then among those of equal place on every node, or the reverse.
struct NodeGroups {
  RankGroup node;          // in the order of ranks
  RankGroup across;        // in the order of nodes
  std::vector<int> ranks;  // of the group: [node][place]
  int rank_at(int node_index, int place) const {
    return ranks[static_cast<size_t>(node_index) * static_cast<size_t>(node.size) +
                 static_cast<size_t>(place)];
  }
};

// The ranks of a group by node, nodes in the order of their first ranks; `node_of` is by rank.
struct RanksByNode {
  int nodes = 0;           // 0 where there is one, or they have different numbers of ranks
  std::vector<int> ranks;  // [node][place]
};
RanksByNode ranks_by_node(std::span<const int> node_of);

// Collective over the group, of which `by_node` are the ranks.
std::shared_ptr<NodeGroups> make_node_groups(const RankGroup& group, RanksByNode by_node);

}  // namespace ds
