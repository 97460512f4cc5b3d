// The groups between which the ranks of a group of the mesh spread training state: who holds one
// copy of it together, who holds the same piece, and who is near. Parameters whose gradients
// different ranks reduce have groups of their own.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "mesh/mesh.h"

namespace ds {

struct StateGroupSizes {
  int shard = 0;      // consecutive ranks that hold one copy together (MiCS); 0: all ranks
  int secondary = 1;  // consecutive ranks that hold a second copy together (hpZ); 1: there is none
};

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

struct StateGroups {
  RankGroup all;                      // whose gradients are reduced together
  RankGroup shard;                    // `all` where there is one copy
  RankGroup replicas;                 // none where there is one copy
  RankGroup secondary;                // none where there is none
  std::shared_ptr<NodeGroups> nodes;  // of `shard`; null unless wanted and possible
  // Hold one copy of the parameters together, each its part of them; alone where each holds all.
  RankGroup model;
};

// The ranks of a group by node, nodes in the order of their first ranks; `node_of` is by rank.
struct RanksByNode {
  int nodes = 0;           // 0 where there is one, or they have different numbers of ranks
  std::vector<int> ranks;  // [node][place]
};
RanksByNode ranks_by_node(std::span<const int> node_of);

// Of the parameters whose gradients `group` reduces. Sizes count consecutive ranks of those that
// read different samples, of which a group of experts has fewer. Collective over the world. Throws
// kConfig where the sizes do not divide it. With `want_nodes` all shard groups of a group have
// groups of nodes, or none has.
StateGroups make_state_groups(const Mesh& mesh, MeshGroup group, const StateGroupSizes& sizes,
                              bool want_nodes);

}  // namespace ds
