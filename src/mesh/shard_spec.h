// What a rank of a mesh holds of one parameter, and with whom: computed from the declared split
// rule and the mesh alone, so that any rank or plan can ask it for every other rank. Nobody else
// computes such parts.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "mesh/mesh_shape.h"
#include "mesh/split_rule.h"
#include "tensor/box.h"
#include "tensor/tensor.h"

namespace ds {

// A parameter to be cut.
struct ShardRequest {
  std::string_view name;  // for errors
  Shape shape;            // global
  SplitRule rule;
  int64_t expert = -1;  // the one that it belongs to; -1: none, or all of the rule's
  // Of the pipeline that have it, ascending: one, the first and the last, or every one (also:
  // empty).
  std::vector<int> stages = {};
};

// A box of the parameter, and where it begins in the tensor of the rank.
struct ShardBox {
  Box global;
  std::vector<int64_t> local_offset;
  // Consecutive ranks of the group `parts` that hold it (SplitRule::Section::repeats), and whether
  // this is the first of them.
  int copies = 1;
  bool first_copy = true;
};

struct ShardSpec {
  Shape global;
  // Of the rank's tensor, with what pads a vocabulary; no elements where it holds none.
  Shape local;
  // In the order of the local tensor. Padding belongs to no box.
  std::vector<ShardBox> boxes;
  // Ranks of the world that hold each element of a box, times the box's copies; the box of each
  // other is the same or disjoint.
  int64_t replicas = 1;
  // Of the ranks that hold the same boxes the first, but for their copies.
  bool primary = true;
  bool cut = false;  // over the group `parts`
  // Whose ranks hold the parts of one copy: tensor, or expert-tensor.
  MeshGroup parts = MeshGroup::kTensor;
  // Over whose ranks the gradient is reduced: data+context, or expert-data.
  MeshGroup gradient = MeshGroup::kDataContext;
  // Over whose ranks ZeRO spreads the state; its shard groups are subdivisions of this one.
  MeshGroup state = MeshGroup::kDataContext;
  // Where several stages have it: over whose ranks its gradients are added up besides.
  std::optional<MeshGroup> tied = {};

  bool held() const { return !boxes.empty(); }
  // Checkpoints and norms count the elements of a box on one rank alone.
  bool counts(const ShardBox& box) const { return primary && box.first_copy; }
  // The ranks that hold the same box of one copy of the parameter. Each has the gradient of what it
  // computes with the box; they are added up over this group, before the gradients of other copies
  // are reduced.
  MeshSubgroup copies_of(const ShardBox& box) const {
    return {parts, MeshPart::kCopies, box.copies};
  }
};

// Throws kConfig where the ranks cannot share the parameter equally, and kInvalidArgument where the
// rule does not fit the shape.
ShardSpec make_shard_spec(const ShardRequest& request, const MeshShape& mesh, int rank);

}  // namespace ds
