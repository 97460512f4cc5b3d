#include "mesh/node_groups.h"

#include <algorithm>
#include <map>

namespace ds {

std::shared_ptr<NodeGroups> make_node_groups(const RankGroup& group, RanksByNode by_node) {
  const int places = group.size / by_node.nodes;
  const auto at =
      static_cast<int>(std::ranges::find(by_node.ranks, group.rank) - by_node.ranks.begin());
  const int node = at / places, place = at % places;
  auto out = std::make_shared<NodeGroups>();
  out->node = {group->split(node, group.rank, {.label = "ranks of a node"}), place, places};
  out->across = {group->split(place, node, {.label = "equal places of nodes"}), node,
                 by_node.nodes};
  out->ranks = std::move(by_node.ranks);
  return out;
}

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

}  // namespace ds
