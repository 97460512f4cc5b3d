#include "mesh/mesh.h"

#include "base/log.h"

namespace ds {

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
  if (size(group) == 1) {
    CommOptions options;
    options.deadline = world_->deadline();
    return make_single_communicator(options);
  }
  const std::vector<int> ranks = members(group);
  const int color = ranks.empty() ? -1 : ranks.front();
  auto made = world_->split(color, rank(), {.label = mesh_group_name(group), .same_label = true});
  if (log_enabled(LogLevel::kInfo) && made) {
    std::string text;
    for (const int member : ranks) text += str_cat(text.empty() ? "" : ", ", member);
    log_info("mesh", describe(), ": group \"", mesh_group_name(group), "\" of ranks ", text);
  }
  return made;
}

}  // namespace ds
