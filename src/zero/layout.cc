#include "zero/layout.h"

#include <algorithm>

namespace ds::zero {
namespace {

// What travels as it is where much else is quantised: gradients of vectors, of which there are few
// and some of which are delicate, and frozen weights that are not worth it.
bool travels_exactly(const nn::Parameter& p, const Shape& shape, const LayoutPolicy& policy,
                     int world) {
  constexpr int64_t kMostFrozen = 500'000, kMostFrozenPiece = 2048;
  if (p.trainable) return policy.quantized_gradients && shape.dims() < 2;
  const int64_t n = shape.elements();
  return policy.quantized_frozen &&
         (n <= kMostFrozen || (n + world - 1) / world <= kMostFrozenPiece);
}

// What stage 3 says of the parameters that this rank holds. Those that stay whole are the first
// small ones as long as there is room: ranks hold parts of the same sizes in the same order, so all
// choose alike.
void choose_weights(const nn::ParameterSet& parameters, const LayoutPolicy& policy,
                    Sharing& sharing) {
  const auto count = static_cast<size_t>(parameters.size());
  sharing.resident.assign(count, false);
  sharing.exact.assign(count, false);
  sharing.tile_elements = policy.tile_elements;
  if (policy.tile_elements > 0) sharing.tiled.assign(count, false);
  int64_t total = 0;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const auto i = static_cast<size_t>(id);
    const int domain = sharing.domain.empty() ? 0 : sharing.domain[i];
    if (domain == Sharing::kAbsent) continue;
    const Shape& shape = sharing.shapes.empty() ? parameters[id].shape : sharing.shapes[i];
    const int world = sharing.domains[static_cast<size_t>(domain)].world;
    sharing.exact[i] = travels_exactly(parameters[id], shape, policy, world);
    if (policy.tile_elements > 0) sharing.tiled[i] = parameters[id].may_be_tiled;
    const int64_t n = shape.elements();
    if (n > policy.param_persistence_threshold || n > policy.model_persistence_threshold - total)
      continue;
    sharing.resident[i] = true;
    total += n;
  }
}

}  // namespace

Layout::Layout(const nn::ParameterSet& parameters, const MeshShape& mesh, int rank,
               const LayoutPolicy& policy, std::span<const std::vector<int>> stages)
    : mesh_(mesh),
      rank_(rank),
      stage_(policy.stage),
      averaged_over_(mesh.size(MeshGroup::kDataContext)),
      places_(static_cast<size_t>(parameters.size())),
      flat_(parameters, sharing_of(parameters, policy, stages)) {}

Sharing Layout::sharing_of(const nn::ParameterSet& parameters, const LayoutPolicy& policy,
                           std::span<const std::vector<int>> stages) {
  Sharing sharing;
  domain_of(MeshGroup::kDataContext);
  if (mesh_.world() > 1) place_parts(parameters, stages, sharing);
  sharing.domains.clear();
  for (const GradientDomain& domain : domains_) {
    const int part = mesh_.ranks_in_part(domain.group, policy.shard);
    const MeshSubgroup shard{domain.group, MeshPart::kShard, part};
    BucketRanks ranks{mesh_.index_in(shard, rank_), mesh_.size(shard)};
    if (policy.stage == 0) ranks = {};
    sharing.domains.push_back(ranks);
  }
  sharing.bucket_elements = policy.bucket_elements;
  sharing.fp32 = policy.fp32;
  if (policy.stage < 2) sharing.sparse = policy.sparse;
  if (policy.stage == 3) choose_weights(parameters, policy, sharing);
  return sharing;
}

// What this rank holds of each parameter, and the domains that there are.
void Layout::place_parts(const nn::ParameterSet& parameters,
                         std::span<const std::vector<int>> stages, Sharing& sharing) {
  const int stage = mesh_.coordinate(MeshAxis::kPipeline, rank_);
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const std::vector<int> held =
        stages.empty() ? std::vector<int>() : stages[static_cast<size_t>(id)];
    const ShardSpec spec = nn::shard_spec(parameters[id], mesh_, rank_, held);
    const bool none = spec.local.elements() == 0 && spec.global.elements() > 0;
    Place& place = places_[static_cast<size_t>(id)];
    place.domain = domain_of(spec.gradient);
    place.in_parts = spec.replicas < mesh_.world();
    place.first_copy = stage == (held.empty() ? 0 : held.front()) &&
                       (spec.cut || mesh_.index_in(spec.parts, rank_) == 0);
    any_in_parts_ = any_in_parts_ || place.in_parts;
    sharing.domain.push_back(none ? Sharing::kAbsent : place.domain);
    sharing.shapes.push_back(spec.local);
    if (!std::ranges::all_of(spec.boxes, &ShardBox::first_copy)) repeated_[id] = spec.boxes;
  }
}

// Where the ranks of two groups are the same, their domain is.
int Layout::domain_of(MeshGroup group) {
  const MeshGroup wanted = mesh_.canonical(group);
  const auto found = std::ranges::find(domains_, wanted, [this](const GradientDomain& domain) {
    return mesh_.canonical(domain.group);
  });
  if (found == domains_.end()) {
    domains_.push_back({group, mesh_.index_in(group, rank_), mesh_.size(group)});
    return static_cast<int>(domains_.size()) - 1;
  }
  return static_cast<int>(found - domains_.begin());
}

int Layout::holder(const nn::Parameter& p) const {
  const MeshGroup gradient = nn::shard_spec(p, mesh_, rank_).gradient;
  const std::vector<int> ranks = mesh_.members(model_group(gradient), rank_);
  const auto holds = [&](int rank) {
    return nn::shard_spec(p, mesh_, rank).local.elements() == p.shape.elements();
  };
  const auto found = std::ranges::find_if(ranks, holds);
  DS_CHECK(found != ranks.end(), Code::kInternal, "no rank holds ", p.name, " wholly");
  return static_cast<int>(found - ranks.begin());
}

int64_t Layout::held(StateRole role) const {
  const bool pieces = spread(role);
  if (role == StateRole::kGradients) {
    return pieces ? flat_.owned_trainable_elements() : flat_.trainable_elements();
  }
  return pieces ? flat_.owned_elements() : flat_.elements();
}

std::vector<OwnedPart> Layout::primary(nn::ParamId id) const {
  const Place& place = places_[static_cast<size_t>(id)];
  if (!flat_.holds(id) || !place.first_copy) return {};
  // Of copies within the domain's group the first.
  if (domains_[static_cast<size_t>(place.domain)].rank >= flat_.world(place.domain)) return {};
  const OwnedPart own = flat_.part(id);
  const auto boxes = repeated_.find(id);
  if (boxes == repeated_.end()) return {own};
  // Such boxes are rows of the local tensor.
  std::vector<OwnedPart> parts;
  const Shape& local = flat_.shape(id);
  const int64_t row = local.elements() / local[0];
  for (const ShardBox& box : boxes->second) {
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
