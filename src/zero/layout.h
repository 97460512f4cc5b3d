// How a rank's training state is laid out: one flat space whose buckets belong to gradient domains,
// parameters whose gradients are reduced over the same ranks. Computed from parameters, mesh and
// policy; immutable, and without memory, so that a plan has the very layout of a run.
#pragma once

#include <limits>
#include <map>
#include <span>
#include <vector>

#include "mesh/mesh_shape.h"
#include "nn/parameter.h"
#include "zero/flat_layout.h"

namespace ds::zero {

// What each rank of a group has of the state, and how it is cut into buckets.
struct LayoutPolicy {
  int stage = 0;  // of ZeRO: 0 is everything on every rank
  int shard = 0;  // consecutive ranks that hold one copy together (MiCS); 0: the whole group
  int64_t bucket_elements = std::numeric_limits<int64_t>::max();
  // By parameter, or empty; see Sharing.
  std::vector<bool> fp32 = {};
  std::vector<bool> sparse = {};
  // Of stage 3. Parameters of at most so many elements stay whole, as long as all that do have at
  // most `model_persistence_threshold`.
  int64_t param_persistence_threshold = 0;
  int64_t model_persistence_threshold = 0;
  // What travels quantised, but for what is small or delicate.
  bool quantized_gradients = false;
  bool quantized_frozen = false;
  int64_t tile_elements = 0;  // of weights that may be tiled; 0: none is
};

struct GradientDomain {
  MeshGroup group = MeshGroup::kDataContext;  // reduces its gradients
  int rank = 0;                               // in the group
  int ranks = 1;
};

enum class StateRole { kWeights, kMasters, kGradients };

class Layout {
 public:
  // Of one process, which has everything.
  explicit Layout(const nn::ParameterSet& parameters, const LayoutPolicy& policy = {})
      : Layout(parameters, MeshShape(), 0, policy) {}
  // `stages`: by parameter, the pipeline stages that have it (ShardRequest::stages); empty: every
  // parameter is on every stage.
  Layout(const nn::ParameterSet& parameters, const MeshShape& mesh, int rank,
         const LayoutPolicy& policy, std::span<const std::vector<int>> stages = {});

  const FlatLayout& flat() const { return flat_; }
  // By Bucket::domain, those of dense parameters first: the same on every rank, also where a rank
  // holds nothing of one.
  std::span<const GradientDomain> domains() const { return domains_; }
  int domain(nn::ParamId id) const { return places_[static_cast<size_t>(id)].domain; }
  // Whether some ranks do not hold all of a parameter, or of any.
  bool in_parts(nn::ParamId id) const { return places_[static_cast<size_t>(id)].in_parts; }
  bool in_parts() const { return any_in_parts_; }
  // Of a parameter in parts that some rank holds wholly, that rank's place among those that hold
  // one copy of the domain together (model_group). `p` is as the set had it.
  int holder(const nn::Parameter& p) const;

  const MeshShape& mesh() const { return mesh_; }
  int stage() const { return stage_; }
  // What the mean over the ranks of a domain lacks to be a gradient's.
  float share_of_mean(int domain) const {
    return static_cast<float>(domains_[static_cast<size_t>(domain)].ranks) /
           static_cast<float>(averaged_over_);
  }

  // Whether the ranks of a domain have pieces of a role alone.
  bool spread(StateRole role) const { return stage_ >= (role == StateRole::kWeights ? 3 : 1); }
  // Elements that this rank holds of a role, padding included.
  int64_t held(StateRole role) const;
  // The elements of its local part for which this rank alone answers among all that hold them: it
  // counts them in norms and saves them. None where another does; several where ranks hold parts of
  // it alike.
  std::vector<OwnedPart> primary(nn::ParamId id) const;

 private:
  struct Place {
    int domain = 0;
    bool in_parts = false;
    bool first_copy = true;  // of the copies that other groups hold
  };
  Sharing sharing_of(const nn::ParameterSet& parameters, const LayoutPolicy& policy,
                     std::span<const std::vector<int>> stages);
  void place_parts(const nn::ParameterSet& parameters, std::span<const std::vector<int>> stages,
                   Sharing& sharing);
  int domain_of(MeshGroup group);

  MeshShape mesh_;
  int rank_;
  int stage_;
  int averaged_over_;
  std::vector<GradientDomain> domains_;
  std::vector<Place> places_;
  bool any_in_parts_ = false;
  // Of those parameters that have boxes which other ranks of the group `parts` hold alike.
  std::map<nn::ParamId, std::vector<ShardBox>> repeated_;
  FlatLayout flat_;
};

}  // namespace ds::zero
