#include "mesh/state_groups.h"

namespace ds {

StateGroups make_state_groups(const Mesh& mesh, MeshGroup group, const StateGroupSizes& sizes,
                              bool want_nodes) {
  StateGroups out;
  out.all = out.shard = mesh.placed(group);
  const int shard_ranks = mesh.shape().ranks_in_part(group, sizes.shard);
  if (shard_ranks < out.all.size) {
    out.shard = mesh.placed({group, MeshPart::kShard, shard_ranks});
    out.replicas = mesh.placed({group, MeshPart::kReplicas, shard_ranks});
  }
  const int near = sizes.secondary > 1 ? mesh.shape().ranks_in_part(group, sizes.secondary) : 1;
  if (near > 1) out.secondary = mesh.placed({group, MeshPart::kSecondary, near});
  out.model = mesh.placed(model_group(group));
  if (!want_nodes) return out;
  // Every rank knows where all are, so that all shard groups decide alike.
  const std::vector<int> node_of = out.all.comm->topology().node_of;
  const auto shard = static_cast<size_t>(out.shard.size);
  const auto own = static_cast<size_t>(out.all.rank) / shard * shard;
  RanksByNode by_node;
  for (size_t first = 0; first < node_of.size(); first += shard) {
    RanksByNode found = ranks_by_node(std::span(node_of).subspan(first, shard));
    if (found.nodes == 0) return out;
    if (first == own) by_node = std::move(found);
  }
  out.nodes = make_node_groups(out.shard, std::move(by_node));
  return out;
}

}  // namespace ds
