#include "zero/layout.h"

#include <algorithm>

namespace ds::zero {
namespace {

// The entries of the parameters of a domain.
std::vector<bool> of_domain(const std::vector<bool>& all, std::span<const nn::ParamId> ids) {
  std::vector<bool> out;
  if (all.empty()) return out;
  for (const nn::ParamId id : ids) out.push_back(all[static_cast<size_t>(id)]);
  return out;
}

Sharing sharing_of(const LayoutPolicy& policy, std::span<const nn::ParamId> ids,
                   const MeshShape& mesh, MeshGroup group, int rank) {
  const Sharing& all = policy.sharing;
  Sharing out;
  const int ranks = policy.shard > 0 ? policy.shard : mesh.size(group);
  const MeshSubgroup shard{group, MeshPart::kShard, ranks};
  out.rank = policy.stage > 0 ? mesh.index_in(shard, rank) : 0;
  out.world = policy.stage > 0 ? mesh.size(shard) : 1;
  out.bucket_elements = all.bucket_elements;
  out.resident = of_domain(all.resident, ids);
  out.exact = of_domain(all.exact, ids);
  out.fp32 = of_domain(all.fp32, ids);
  out.sparse = of_domain(all.sparse, ids);
  out.tiled = of_domain(all.tiled, ids);
  out.tile_elements = all.tile_elements;
  return out;
}

}  // namespace

Layout::Layout(const nn::ParameterSet& parameters, const MeshShape& mesh, int rank,
               const LayoutPolicy& policy, std::span<const std::vector<int>> stages)
    : policy_(policy),
      averaged_over_(mesh.size(MeshGroup::kDataContext)),
      places_(static_cast<size_t>(parameters.size())) {
  const int stage = mesh.coordinate(MeshAxis::kPipeline, rank);
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const std::vector<int> held =
        stages.empty() ? std::vector<int>() : stages[static_cast<size_t>(id)];
    specs_.push_back(nn::shard_spec(parameters[id], mesh, rank, held));
    const ShardSpec& spec = specs_.back();
    first_copy_.push_back(stage == (held.empty() ? 0 : held.front()) &&
                          (spec.cut || mesh.index_in(spec.parts, rank) == 0));
  }
  add_domain(parameters, MeshGroup::kDataContext, mesh, rank);
  // Where every rank has all experts, their gradients are reduced like all others.
  if (mesh.canonical(MeshGroup::kExpertData) != mesh.canonical(MeshGroup::kDataContext)) {
    add_domain(parameters, MeshGroup::kExpertData, mesh, rank);
  }
}

void Layout::add_domain(const nn::ParameterSet& parameters, MeshGroup group, const MeshShape& mesh,
                        int rank) {
  std::vector<nn::ParamId> ids;
  nn::ParameterSet local;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const ShardSpec& spec = specs_[static_cast<size_t>(id)];
    const bool none = spec.local.elements() == 0 && spec.global.elements() > 0;
    if (mesh.canonical(spec.gradient) != mesh.canonical(group) || none) continue;
    nn::Parameter part = parameters[id];
    part.shape = spec.local;
    places_[static_cast<size_t>(id)] = {static_cast<int>(domains_.size()), local.add(part)};
    ids.push_back(id);
  }
  if (ids.empty()) return;
  const int place = mesh.index_in(group, rank), ranks = mesh.size(group);
  DS_CHECK(policy_.shard == 0 || ranks % policy_.shard == 0, Code::kConfig, "a shard of ",
           policy_.shard, " ranks does not divide the ", ranks, " ranks of the ",
           mesh_group_name(group), " group");
  FlatLayout flat(local, sharing_of(policy_, ids, mesh, group, rank));
  domains_.push_back({group, place, ranks, std::move(ids), std::move(local), std::move(flat)});
}

int64_t Layout::held(StateRole role) const {
  int64_t elements = 0;
  for (const GradientDomain& domain : domains_) {
    const FlatLayout& flat = domain.flat;
    const bool spread = policy_.stage >= (role == StateRole::kWeights ? 3 : 1);
    if (role == StateRole::kGradients) {
      elements += spread ? flat.owned_trainable_elements() : flat.trainable_elements();
    } else {
      elements += spread ? flat.owned_elements() : flat.elements();
    }
  }
  return elements;
}

std::vector<OwnedPart> Layout::primary(nn::ParamId id) const {
  const Place at = place(id);
  if (at.domain < 0 || !first_copy_[static_cast<size_t>(id)]) return {};
  const GradientDomain& domain = domains_[static_cast<size_t>(at.domain)];
  // Of copies within the domain's group the first.
  if (domain.rank >= domain.flat.world()) return {};
  const OwnedPart own = domain.flat.part(at.id);
  const ShardSpec& spec = this->spec(id);
  if (std::ranges::all_of(spec.boxes, &ShardBox::first_copy)) return {own};
  // Such boxes are rows of the local tensor.
  std::vector<OwnedPart> parts;
  const int64_t row = spec.local.elements() / spec.local[0];
  for (const ShardBox& box : spec.boxes) {
    if (!box.first_copy) continue;
    const int64_t first = std::max(own.first, box.local_offset[0] * row);
    const int64_t last =
        std::min(own.first + own.count, (box.local_offset[0] + box.global.extent[0]) * row);
    const int64_t skipped = first - own.first;
    if (first < last) {
      parts.push_back({first, last - first, own.flat + skipped, own.owned + skipped});
    }
  }
  return parts;
}

}  // namespace ds::zero
