// How the ranks of a world are arranged along the axes of parallelism, and which of them form a
// group: arithmetic on rank numbers alone, with no communicator, so that a plan can ask it for any
// world.
//
// The order is Megatron-LM's default, tp-cp-ep-dp-pp (megatron/core/parallel_state.py): the tensor
// coordinate changes fastest from rank to rank, then context, data and pipeline. Layers of experts
// see the ranks of a pipeline stage arranged anew, in the order expert-tensor, expert, expert-data.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ds {

enum class MeshAxis {
  kTensor,
  kContext,
  kData,
  kPipeline,
  // Those of experts, over the same ranks.
  kExpertTensor,
  kExpert,
  kExpertData,
};
inline constexpr int kMeshAxes = 7;
std::string_view mesh_axis_name(MeshAxis axis) noexcept;

// The groups that a rank belongs to. Where several consist of the same ranks, a communicator has
// the name of the first.
enum class MeshGroup {
  kWorld,
  kData,
  kTensor,
  kContext,
  kPipeline,
  kDataContext,    // reduces gradients of dense parameters, and shards their state
  kTensorContext,  // works on the same samples in one stage
  kModel,          // tensor and pipeline: holds one copy of the dense parameters together
  kExpert,
  kExpertTensor,
  kExpertData,   // reduces gradients of experts, and shards their state
  kExpertModel,  // expert-tensor, expert and pipeline: one copy of the experts
  kEmbedding,    // the first and the last stage, which share a tied embedding
};
inline constexpr int kMeshGroups = 13;
std::string_view mesh_group_name(MeshGroup group) noexcept;
// Throws kInvalidArgument with the nearest name.
MeshGroup mesh_group_of(std::string_view name);
// Of parameters whose gradients a group reduces: the ranks that hold one copy of them together.
constexpr MeshGroup model_group(MeshGroup gradient) noexcept {
  return gradient == MeshGroup::kExpertData ? MeshGroup::kExpertModel : MeshGroup::kModel;
}

// How a group is cut further, into parts of so many consecutive ranks: what a rank belongs to is
// its part, or the ranks of equal place in all parts.
enum class MeshPart {
  kShard,      // a part, which holds one copy of training state together (MiCS)
  kReplicas,   // equal places, which hold the same piece of it
  kSecondary,  // a part, which holds a second copy of weights together (hpZ)
  kCopies,     // a part, whose ranks hold the same heads of keys and values
};
std::string_view mesh_part_name(MeshPart part) noexcept;
struct MeshSubgroup {
  MeshGroup of = MeshGroup::kWorld;
  MeshPart part = MeshPart::kShard;
  int consecutive = 1;
  auto operator<=>(const MeshSubgroup&) const = default;  // NOLINT(modernize-use-nullptr)
};

// What is chosen; the sizes of the data and expert-data axes follow from the world.
struct MeshSizes {
  int pipeline = 1;
  int context = 1;
  int tensor = 1;
  int expert = 1;
  int expert_tensor = 0;  // 0: as `tensor`
};

class MeshShape {
 public:
  static constexpr int kMostRanks = 1 << 20;

  MeshShape() : MeshShape(1, {}) {}
  // Throws kConfig where the sizes do not divide the world.
  MeshShape(int world, const MeshSizes& sizes);

  int world() const { return world_; }
  int size(MeshAxis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  // Of a rank along an axis.
  int coordinate(MeshAxis axis, int rank) const;
  // The rank with these coordinates along the axes of dense layers.
  int rank_at(int pipeline, int data, int context, int tensor) const;

  // Ranks in a group of this kind; the same for every group of the kind.
  int size(MeshGroup group) const;
  // The members of the group that `rank` belongs to, ascending; none where it belongs to none (a
  // stage between the first and the last has no embedding group).
  std::vector<int> members(MeshGroup group, int rank) const;
  // The place of `rank` among them; -1 where it belongs to none.
  int index_in(MeshGroup group, int rank) const;
  // The same of a subgroup. Throws kConfig where its parts do not divide the group.
  int size(const MeshSubgroup& subgroup) const;
  std::vector<int> members(const MeshSubgroup& subgroup, int rank) const;
  int index_in(const MeshSubgroup& subgroup, int rank) const;
  // How many ranks of a group are among so many consecutive ones of those that read different
  // samples; 0: all of it. Throws kConfig where such parts do not divide the ranks.
  int ranks_in_part(MeshGroup group, int consecutive) const;
  // The first kind whose groups have the same members as those of `group`.
  MeshGroup canonical(MeshGroup group) const;

  // "rank 5 of 8 (pipeline 1, tensor 1)": the axes that have more than one place.
  std::string describe(int rank) const;

  bool operator==(const MeshShape&) const = default;

 private:
  // A group is the ranks that are reached by so many steps of each stride.
  struct Step {
    int stride;
    int count;
    bool operator==(const Step&) const = default;
  };
  std::vector<Step> steps_of(MeshGroup group) const;
  bool belongs(MeshGroup group, int rank) const;
  void check_rank(int rank) const;

  int world_;
  std::array<int, kMeshAxes> sizes_{};
  std::array<int, kMeshAxes> strides_{};
};

}  // namespace ds
