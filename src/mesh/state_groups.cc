#include "mesh/state_groups.h"

#include <algorithm>
#include <map>

namespace ds {
namespace {

std::shared_ptr<NodeGroups> make_node_groups(const RankGroup& shard, RanksByNode by_node) {
  const int places = shard.size / by_node.nodes;
  const auto at =
      static_cast<int>(std::ranges::find(by_node.ranks, shard.rank) - by_node.ranks.begin());
  const int node = at / places, place = at % places;
  auto out = std::make_shared<NodeGroups>();
  out->node = {shard->split(node, shard.rank, {.label = "ranks of a node"}), place, places};
  out->across = {shard->split(place, node, {.label = "equal places of nodes"}), node,
                 by_node.nodes};
  out->ranks = std::move(by_node.ranks);
  return out;
}

}  // namespace

RanksByNode ranks_by_node(std::span<const int> node_of) {
  std::vector<std::vector<int>> nodes;
  std::map<int, size_t> index;
  for (size_t rank = 0; rank < node_of.size(); ++rank) {
    const auto [found, fresh] = index.try_emplace(node_of[rank], nodes.size());
    if (fresh) nodes.emplace_back();
    nodes[found->second].push_back(static_cast<int>(rank));
  }
  RanksByNode out;
  if (nodes.size() < 2) return out;
  for (const std::vector<int>& node : nodes) {
    if (node.size() != nodes.front().size()) return {};
    out.ranks.insert(out.ranks.end(), node.begin(), node.end());
  }
  out.nodes = static_cast<int>(nodes.size());
  return out;
}

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
