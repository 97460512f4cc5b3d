#include "mesh/mesh_shape.h"

#include <algorithm>

#include "base/error.h"

namespace ds {
namespace {

constexpr std::array<std::string_view, kMeshAxes> kAxisNames = {
    "tensor", "context", "data", "pipeline", "expert-tensor", "expert", "expert-data"};

constexpr std::array<std::string_view, 4> kPartNames = {"shard group", "replicas",
                                                        "secondary shards", "copies of heads"};

struct GroupKind {
  std::string_view name;
  std::vector<MeshAxis> axes;  // the fastest first
};

// In the order of the enumeration.
const std::array<GroupKind, kMeshGroups>& group_kinds() {
  using enum MeshAxis;
  static const std::array<GroupKind, kMeshGroups> kinds = {{
      {"world", {kTensor, kContext, kData, kPipeline}},
      {"data", {kData}},
      {"tensor", {kTensor}},
      {"context", {kContext}},
      {"pipeline", {kPipeline}},
      {"data+context", {kContext, kData}},
      {"tensor+context", {kTensor, kContext}},
      {"model", {kTensor, kPipeline}},
      {"expert", {kExpert}},
      {"expert-tensor", {kExpertTensor}},
      {"expert-data", {kExpertData}},
      {"expert-model", {kExpertTensor, kExpert, kPipeline}},
      {"embedding", {}},
  }};
  return kinds;
}

const GroupKind& kind_of(MeshGroup group) { return group_kinds()[static_cast<size_t>(group)]; }

void check_size(std::string_view name, int size) {
  DS_CHECK(size >= 1 && size <= MeshShape::kMostRanks, Code::kConfig, "mesh: the ", name,
           " axis has size ", size, "; from 1 to ", MeshShape::kMostRanks, " is possible");
}

// The ranks that are left for the last axis of `world` ranks, of which the others take `taken`.
int remaining(int world, int64_t taken, std::string_view what) {
  DS_CHECK(world % taken == 0, Code::kConfig, "mesh: ", what, " = ", taken,
           " does not divide the world of ", world, " ranks; choose sizes whose product does");
  return static_cast<int>(world / taken);
}

}  // namespace

std::string_view mesh_axis_name(MeshAxis axis) noexcept {
  return kAxisNames[static_cast<size_t>(axis)];
}

std::string_view mesh_part_name(MeshPart part) noexcept {
  return kPartNames[static_cast<size_t>(part)];
}

std::string_view mesh_group_name(MeshGroup group) noexcept { return kind_of(group).name; }

MeshGroup mesh_group_of(std::string_view name) {
  std::vector<std::string> names;
  for (int i = 0; i < kMeshGroups; ++i) {
    const auto group = static_cast<MeshGroup>(i);
    if (mesh_group_name(group) == name) return group;
    names.emplace_back(mesh_group_name(group));
  }
  const std::string nearest = nearest_name(std::string(name), names);
  fail(Code::kInvalidArgument, "no group of a mesh is named ", printable(name),
       nearest.empty() ? "" : "; did you mean " + nearest + "?");
}

MeshShape::MeshShape(int world, const MeshSizes& sizes) : world_(world) {
  using enum MeshAxis;
  DS_CHECK(world >= 1 && world <= kMostRanks, Code::kInvalidArgument, "mesh: a world of ", world,
           " ranks; from 1 to ", kMostRanks, " are possible");
  const int expert_tensor = sizes.expert_tensor == 0 ? sizes.tensor : sizes.expert_tensor;
  check_size("pipeline", sizes.pipeline);
  check_size("context", sizes.context);
  check_size("tensor", sizes.tensor);
  check_size("expert", sizes.expert);
  check_size("expert-tensor", expert_tensor);
  const auto set = [this](MeshAxis axis, int size) { sizes_[static_cast<size_t>(axis)] = size; };
  set(kPipeline, sizes.pipeline);
  set(kContext, sizes.context);
  set(kTensor, sizes.tensor);
  set(kExpert, sizes.expert);
  set(kExpertTensor, expert_tensor);
  // Three factors of at most 2^20 each fit 64 bits.
  const int64_t dense = int64_t{sizes.pipeline} * sizes.context * sizes.tensor;
  const int64_t experts = int64_t{sizes.pipeline} * sizes.expert * expert_tensor;
  set(kData, remaining(world, dense,
                       str_cat("pipeline ", sizes.pipeline, " x context ", sizes.context,
                               " x tensor ", sizes.tensor)));
  set(kExpertData, remaining(world, experts,
                             str_cat("pipeline ", sizes.pipeline, " x expert ", sizes.expert,
                                     " x expert-tensor ", expert_tensor)));
  for (const auto& order : {std::array{kTensor, kContext, kData, kPipeline},
                            std::array{kExpertTensor, kExpert, kExpertData, kPipeline}}) {
    int stride = 1;
    for (const MeshAxis axis : order) {
      strides_[static_cast<size_t>(axis)] = stride;
      stride *= size(axis);
    }
  }
}

void MeshShape::check_rank(int rank) const {
  DS_CHECK(rank >= 0 && rank < world_, Code::kInvalidArgument, "mesh: rank ", rank,
           " is none of the ", world_, " ranks");
}

int MeshShape::coordinate(MeshAxis axis, int rank) const {
  check_rank(rank);
  return rank / strides_[static_cast<size_t>(axis)] % size(axis);
}

int MeshShape::rank_at(int pipeline, int data, int context, int tensor) const {
  using enum MeshAxis;
  int rank = 0;
  const auto add = [&](MeshAxis axis, int place) {
    DS_CHECK(place >= 0 && place < size(axis), Code::kInvalidArgument,
             "mesh: ", mesh_axis_name(axis), " ", place, " is outside the axis of size ",
             size(axis));
    rank += place * strides_[static_cast<size_t>(axis)];
  };
  add(kPipeline, pipeline);
  add(kData, data);
  add(kContext, context);
  add(kTensor, tensor);
  return rank;
}

// Axes of size 1 are left out and neighbours joined, so that equal steps mean equal groups.
std::vector<MeshShape::Step> MeshShape::steps_of(MeshGroup group) const {
  const int stages = size(MeshAxis::kPipeline);
  if (group == MeshGroup::kEmbedding) {
    if (stages == 1) return {};
    return {{(stages - 1) * strides_[static_cast<size_t>(MeshAxis::kPipeline)], 2}};
  }
  std::vector<Step> steps;
  for (const MeshAxis axis : kind_of(group).axes) {
    const Step step{strides_[static_cast<size_t>(axis)], size(axis)};
    if (step.count == 1) continue;
    if (!steps.empty() && steps.back().stride * steps.back().count == step.stride) {
      steps.back().count *= step.count;
    } else {
      steps.push_back(step);
    }
  }
  return steps;
}

bool MeshShape::belongs(MeshGroup group, int rank) const {
  const int stages = size(MeshAxis::kPipeline);
  if (group != MeshGroup::kEmbedding || stages == 1) return true;
  const int stage = coordinate(MeshAxis::kPipeline, rank);
  return stage == 0 || stage == stages - 1;
}

int MeshShape::size(MeshGroup group) const {
  int size = 1;
  for (const Step& step : steps_of(group)) size *= step.count;
  return size;
}

std::vector<int> MeshShape::members(MeshGroup group, int rank) const {
  check_rank(rank);
  if (!belongs(group, rank)) return {};
  const std::vector<Step> steps = steps_of(group);
  int first = rank;
  for (const Step& step : steps) first -= rank / step.stride % step.count * step.stride;
  std::vector<int> members = {first};
  for (const Step& step : steps) {
    const size_t before = members.size();
    for (int i = 1; i < step.count; ++i) {
      for (size_t k = 0; k < before; ++k) members.push_back(members[k] + i * step.stride);
    }
  }
  return members;
}

int MeshShape::index_in(MeshGroup group, int rank) const {
  check_rank(rank);
  if (!belongs(group, rank)) return -1;
  int index = 0, before = 1;
  for (const Step& step : steps_of(group)) {
    index += rank / step.stride % step.count * before;
    before *= step.count;
  }
  return index;
}

int MeshShape::size(const MeshSubgroup& subgroup) const {
  const int ranks = size(subgroup.of), part = subgroup.consecutive;
  DS_CHECK(part >= 1 && ranks % part == 0, Code::kConfig, "mesh: ", mesh_part_name(subgroup.part),
           ": parts of ", part, " ranks do not divide the ", ranks, " ranks of the ",
           mesh_group_name(subgroup.of), " group");
  return subgroup.part == MeshPart::kReplicas ? ranks / part : part;
}

std::vector<int> MeshShape::members(const MeshSubgroup& subgroup, int rank) const {
  const int count = size(subgroup), part = subgroup.consecutive;
  const std::vector<int> group = members(subgroup.of, rank);
  if (group.empty()) return {};
  const int index = index_in(subgroup.of, rank);
  const bool across = subgroup.part == MeshPart::kReplicas;
  const int first = across ? index % part : index / part * part, step = across ? part : 1;
  std::vector<int> out;
  for (int i = 0; i < count; ++i) {
    out.push_back(group[static_cast<size_t>(first) + static_cast<size_t>(i * step)]);
  }
  return out;
}

int MeshShape::index_in(const MeshSubgroup& subgroup, int rank) const {
  static_cast<void>(size(subgroup));  // checks it
  const int index = index_in(subgroup.of, rank), part = subgroup.consecutive;
  if (index < 0) return -1;
  return subgroup.part == MeshPart::kReplicas ? index / part : index % part;
}

int MeshShape::ranks_in_part(MeshGroup group, int consecutive) const {
  const int all = size(MeshGroup::kDataContext), ranks = size(group);
  if (consecutive == 0 || consecutive >= all) return ranks;
  const int part = std::max(1, static_cast<int>(int64_t{consecutive} * ranks / all));
  const bool whole = all % consecutive == 0 && int64_t{consecutive} * ranks % all == 0;
  DS_CHECK(whole && ranks % part == 0, Code::kConfig, "a shard of ", consecutive,
           " ranks does not divide the ", all, " ranks of the ",
           mesh_group_name(MeshGroup::kDataContext), " group");
  return part;
}

MeshGroup MeshShape::canonical(MeshGroup group) const {
  const std::vector<Step> steps = steps_of(group);
  for (int i = 0; i < static_cast<int>(group); ++i) {
    const auto other = static_cast<MeshGroup>(i);
    if (steps_of(other) == steps) return other;
  }
  return group;
}

std::string MeshShape::describe(int rank) const {
  check_rank(rank);
  using enum MeshAxis;
  std::string places;
  const auto add = [&](MeshAxis axis) {
    if (size(axis) == 1) return;
    places +=
        str_cat(places.empty() ? "" : ", ", mesh_axis_name(axis), " ", coordinate(axis, rank));
  };
  for (const MeshAxis axis : {kPipeline, kData, kContext, kTensor}) add(axis);
  if (size(kExpert) > 1) {
    for (const MeshAxis axis : {kExpertData, kExpert, kExpertTensor}) add(axis);
  }
  return str_cat("rank ", rank, " of ", world_, places.empty() ? "" : " (", places,
                 places.empty() ? "" : ")");
}

}  // namespace ds
