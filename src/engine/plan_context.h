// What plans are computed from: a model without memory for it, the configuration, a world of ranks
// that need not be there, and the layout that follows from them.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "base/json.h"
#include "config/config.h"
#include "engine/plan.h"
#include "engine/plan_traffic.h"
#include "engine/share_options.h"
#include "engine/teacher.h"
#include "models/architecture.h"
#include "models/model.h"
#include "nn/parameter.h"
#include "zero/layout.h"

namespace ds {

// What is known of a model.
struct PlanModel {
  // A config.json, or {"parameters", "layers"}.
  static PlanModel of_json(const Json& model);
  // That of an engine, which outlives the plan.
  static PlanModel of_model(const models::Model& model);

  Json config;                                         // null for a program's own parameters
  const models::Architecture* architecture = nullptr;  // null where only its size is known
  const nn::ParameterSet* parameters = nullptr;
  int64_t layers = 0;
  bool own_parameters = false;  // of a program, which computes gradients itself
  // That it learns from; null where the configuration names none, or nobody has opened it yet.
  std::shared_ptr<const TeacherModel> teacher = nullptr;

  std::shared_ptr<const models::Architecture> made_architecture = nullptr;
  std::shared_ptr<const nn::ParameterSet> made_parameters = nullptr;
};

class PlanContext {
 public:
  PlanContext(PlanModel model, std::string_view config_json, const PlanOptions& options);
  // Of an engine; `on_gpu`: its model is on one.
  PlanContext(PlanModel model, const Config& config, int world, int ranks_per_node, bool on_gpu);

  // The optimizer's state is on the host, in memory or in files, and the rank computes on a GPU.
  bool offloads() const { return on_gpu_ && config.zero.offload_optimizer; }
  // So are the weights, of which the GPU has what it uses.
  bool weights_beside_gpu() const { return offloads() && ds::weights_beside_gpu(config); }
  bool in_files() const {
    return config.zero.offload_optimizer && config.zero.offload_optimizer->in_files();
  }
  // What is mapped of its files lies in the memory that the rank computes in.
  bool maps_files() const { return in_files() && !on_gpu_; }
  bool on_gpu() const { return on_gpu_; }
  int64_t item() const { return dtype_size(type); }
  DType gradient_type() const { return dtype_of(config.precision.grad_accum_dtype); }
  // Tokens of a sample; 0 where nobody knows.
  int64_t length() const;
  models::Recompute recompute() const;
  // Of a group of ranks that lie `stride` apart.
  Places places_of(int ranks, int stride) const;
  // How far apart the ranks of a gradient domain lie.
  int stride_of(int domain) const {
    const bool dense =
        layout->domains()[static_cast<size_t>(domain)].group == MeshGroup::kDataContext;
    return dense ? 1 : expert_ranks;
  }
  // Of the ranks between which its buckets are reduced and gathered.
  Places places_of(int domain) const {
    const int all_of_it = layout->domains()[static_cast<size_t>(domain)].ranks;
    return places_of(stage > 0 ? flat().world(domain) : all_of_it, stride_of(domain));
  }
  // Of those, the ranks that hold a second copy together (hpZ); 1: there is none.
  int near_ranks(int domain) const {
    const int near = share.groups.secondary;
    const MeshGroup group = layout->domains()[static_cast<size_t>(domain)].group;
    return near > 1 ? layout->mesh().ranks_in_part(group, near) : 1;
  }
  // Bytes of a bucket that is gathered, as they travel.
  int64_t gathered_bytes(const zero::Bucket& bucket) const;
  const zero::FlatLayout& flat() const { return layout->flat(); }

  PlanModel model;
  Config config;
  int world = 1;
  int per_node = 1;
  int expert_ranks = 1;         // that share the experts of each layer
  bool two_steps = false;       // their rows go so
  int64_t sequence_length = 0;  // 0: the model's positions
  zero::ShareOptions share;
  int stage = 0;
  Places all, shard;     // the group of all ranks, and of those that hold one copy together
  bool by_node = false;  // gradients go quantised within nodes, then across
  DType type = DType::kFloat32;
  std::optional<zero::Layout> layout;

 private:
  void arrange();

  bool on_gpu_ = false;
};

}  // namespace ds
