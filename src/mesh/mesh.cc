#include "mesh/mesh.h"

#include "base/log.h"

namespace ds {

RankGroup lone_group() { return {make_single_communicator()}; }

Mesh::Mesh(std::shared_ptr<Communicator> world, const MeshSizes& sizes)
    : world_(std::move(world)), shape_(world_->size(), sizes) {
  for (int i = 0; i < kMeshGroups; ++i) {
    const auto group = static_cast<MeshGroup>(i);
    places_[static_cast<size_t>(i)] = {shape_.index_in(group, rank()), shape_.size(group),
                                       shape_.canonical(group)};
  }
  groups_[static_cast<size_t>(MeshGroup::kWorld)] = world_;
}

const std::shared_ptr<Communicator>& Mesh::group(MeshGroup wanted) const {
  const MeshGroup group = places_[static_cast<size_t>(wanted)].canonical;
  std::optional<std::shared_ptr<Communicator>>& made = groups_[static_cast<size_t>(group)];
  if (!made) made = make_group(group);
  return *made;
}

std::shared_ptr<Communicator> Mesh::make_group(MeshGroup group) const {
  if (size(group) == 1) return make_lone_group();
  const std::vector<int> ranks = members(group);
  const int color = ranks.empty() ? -1 : ranks.front();
  auto made = world_->split(color, rank(), {.label = mesh_group_name(group), .same_label = true});
  if (made) log_group(mesh_group_name(group), ranks);
  return made;
}

std::shared_ptr<Communicator> Mesh::make_lone_group() const {
  CommOptions options;
  options.deadline = world_->deadline();
  return make_single_communicator(options);
}

RankGroup Mesh::placed(const MeshSubgroup& subgroup) const {
  RankGroup out;
  out.size = shape_.size(subgroup);
  out.rank = shape_.index_in(subgroup, rank());
  const std::shared_ptr<Communicator>& whole = group(subgroup.of);
  if (!whole) return out;
  std::shared_ptr<Communicator>& made = subgroups_[subgroup];
  if (!made && out.size == 1) made = make_lone_group();
  if (!made) {
    const std::string_view name = mesh_part_name(subgroup.part);
    const std::vector<int> ranks = shape_.members(subgroup, rank());
    made = whole->split(ranks.front(), rank(), {.label = name});
    log_group(name, ranks);
  }
  out.comm = made;
  return out;
}

void Mesh::log_group(std::string_view name, const std::vector<int>& ranks) const {
  if (!log_enabled(LogLevel::kInfo)) return;
  std::string text;
  for (const int member : ranks) text += str_cat(text.empty() ? "" : ", ", member);
  log_info("mesh", describe(), ": group \"", name, "\" of ranks ", text);
}

}  // namespace ds
