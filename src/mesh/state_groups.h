// The groups between which the ranks of a group of the mesh spread training state: who holds one
// copy of it together, who holds the same piece, and who is near. Parameters whose gradients
// different ranks reduce have groups of their own.
#pragma once

#include <memory>

#include "mesh/mesh.h"
#include "mesh/node_groups.h"

namespace ds {

struct StateGroupSizes {
  int shard = 0;      // consecutive ranks that hold one copy together (MiCS); 0: all ranks
  int secondary = 1;  // consecutive ranks that hold a second copy together (hpZ); 1: there is none
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

// Of the parameters whose gradients `group` reduces. Sizes count consecutive ranks of those that
// read different samples, of which a group of experts has fewer. Collective over the world. Throws
// kConfig where the sizes do not divide it. With `want_nodes` all shard groups of a group have
// groups of nodes, or none has.
StateGroups make_state_groups(const Mesh& mesh, MeshGroup group, const StateGroupSizes& sizes,
                              bool want_nodes);

}  // namespace ds
