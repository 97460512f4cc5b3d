// How a rank's training state is laid out, as one flat space for each gradient domain, the
// parameters whose gradients are reduced over the same ranks. (An engine has all domains in one
// FlatLayout, whose buckets are these.) Computed from parameters, mesh and policy; immutable, and
// without memory, so that a plan has the very layout of a run.
#pragma once

#include <span>
#include <vector>

#include "mesh/mesh_shape.h"
#include "nn/parameter.h"
#include "zero/flat_layout.h"

namespace ds::zero {

// What each rank of a group has of the state.
struct LayoutPolicy {
  int stage = 0;    // of ZeRO: 0 is everything on every rank
  int shard = 0;    // consecutive ranks that hold one copy together (MiCS); 0: the whole group
  Sharing sharing;  // by parameter of the whole set; rank and world are those of the mesh
};

// Parameters are numbered by their place in the domain.
struct GradientDomain {
  MeshGroup group = MeshGroup::kDataContext;
  int rank = 0;  // in the group
  int ranks = 1;
  std::vector<nn::ParamId> ids;  // in the whole set, by place
  nn::ParameterSet local;        // with the shapes of this rank's parts
  FlatLayout flat;               // of `local`, over the ranks that hold one copy together
};

enum class StateRole { kWeights, kMasters, kGradients };

class Layout {
 public:
  // `stages`: by parameter, the pipeline stages that have it (ShardRequest::stages); empty: every
  // parameter is on every stage.
  Layout(const nn::ParameterSet& parameters, const MeshShape& mesh, int rank,
         const LayoutPolicy& policy, std::span<const std::vector<int>> stages = {});

  // Those of dense parameters first. A rank that has no expert has no domain of experts.
  std::span<const GradientDomain> domains() const { return domains_; }
  struct Place {
    int domain = -1;  // -1: this rank holds nothing of it
    nn::ParamId id = nn::kNoParam;
  };
  Place place(nn::ParamId id) const { return places_[static_cast<size_t>(id)]; }
  const ShardSpec& spec(nn::ParamId id) const { return specs_[static_cast<size_t>(id)]; }

  // The ranks over whose samples a gradient is the mean. Sums over a domain's group are divided by
  // this number, also those of experts: the samples of all ranks come to each of them.
  int averaged_over() const { return averaged_over_; }
  int stage() const { return policy_.stage; }

  // Elements that this rank holds of a role, padding included.
  int64_t held(StateRole role) const;
  // The elements of its local part for which this rank alone answers among all that hold them: it
  // counts them in norms. None where another does; several where ranks hold parts of it alike.
  std::vector<OwnedPart> primary(nn::ParamId id) const;

 private:
  void add_domain(const nn::ParameterSet& parameters, MeshGroup group, const MeshShape& mesh,
                  int rank);

  LayoutPolicy policy_;
  int averaged_over_ = 1;
  std::vector<ShardSpec> specs_;
  std::vector<Place> places_;
  std::vector<bool> first_copy_;  // by parameter: of the copies that other groups hold
  std::vector<GradientDomain> domains_;
};

}  // namespace ds::zero
