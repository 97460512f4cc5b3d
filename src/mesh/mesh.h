// The ranks of a run by their place along the axes of parallelism, and the communicators of its
// groups. The sole source of rank, size, coordinates and groups: one process is a mesh whose axes
// all have size 1.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "mesh/mesh_shape.h"

namespace ds {

// A group that this process belongs to, with its place there as the mesh knows it.
struct RankGroup {
  std::shared_ptr<Communicator> comm = {};  // null: there is no such group
  int rank = 0;
  int size = 1;
  explicit operator bool() const { return comm != nullptr; }
  Communicator* operator->() const { return comm.get(); }
};
// This process alone.
RankGroup lone_group();

class Mesh {
 public:
  // `world` holds every rank of the run; what `sizes` leaves over is the data axis. Local.
  explicit Mesh(std::shared_ptr<Communicator> world, const MeshSizes& sizes = {});

  const MeshShape& shape() const { return shape_; }
  // Of this process, in the world.
  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }
  bool first_rank() const { return rank() == 0; }
  int coordinate(MeshAxis axis) const { return shape_.coordinate(axis, rank()); }
  // In the group of this kind; the rank is -1 where it belongs to none.
  int rank(MeshGroup group) const { return places_[static_cast<size_t>(group)].rank; }
  int size(MeshGroup group) const { return places_[static_cast<size_t>(group)].size; }
  std::vector<int> members(MeshGroup group) const { return shape_.members(group, rank()); }

  const std::shared_ptr<Communicator>& world() const { return world_; }
  // The communicator of the group that this rank belongs to; null where it belongs to none. The
  // first call for a kind of group that is neither the world nor a single rank is collective over
  // the world, and for a subgroup over the group that it is of: every rank makes it, in the same
  // order among their collectives. From one thread, as collectives are.
  const std::shared_ptr<Communicator>& group(MeshGroup group) const;
  // The same with this rank's place, of a group and of a subgroup.
  RankGroup placed(MeshGroup wanted) const { return {group(wanted), rank(wanted), size(wanted)}; }
  RankGroup placed(const MeshSubgroup& subgroup) const;

  // "rank 5 of 8 (pipeline 1, tensor 1)".
  std::string describe() const { return shape_.describe(rank()); }

 private:
  struct Place {
    int rank = 0;
    int size = 1;
    MeshGroup canonical = MeshGroup::kWorld;  // whose communicator it has
  };
  std::shared_ptr<Communicator> make_group(MeshGroup group) const;
  std::shared_ptr<Communicator> make_lone_group() const;
  void log_group(std::string_view name, const std::vector<int>& ranks) const;

  std::shared_ptr<Communicator> world_;
  MeshShape shape_;
  std::array<Place, kMeshGroups> places_;
  // By canonical kind; nothing: nobody has asked for it yet.
  mutable std::array<std::optional<std::shared_ptr<Communicator>>, kMeshGroups> groups_;
  mutable std::map<MeshSubgroup, std::shared_ptr<Communicator>> subgroups_;
};

}  // namespace ds
