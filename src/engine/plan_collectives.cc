#include "engine/plan_collectives.h"

#include <algorithm>
#include <vector>

#include "base/exact_sum.h"
#include "engine/plan_memory.h"
#include "engine/plan_traffic.h"
#include "nn/fp8.h"
#include "optim/muon_rounds.h"
#include "optim/optimizer.h"
#include "zero/comm_shard_group.h"
#include "zero/piece_blocks.h"

namespace ds {
namespace {

// Numbers that ranks add up per step: losses and how many, tokens, batches, samples.
constexpr int64_t kTotals = 5;

class CollectivesPlanner {
 public:
  explicit CollectivesPlanner(const PlanContext& plan) : plan_(plan) {}

  Json run() const {
    Json out = Json::array();
    if (plan_.world == 1) return out;
    add_gradients(out);
    if (plan_.stage == 3) {
      add_gathers(out);
    } else if (plan_.stage > 0) {
      PlannedTraffic weights;
      plan_.for_each_bucket([&](const zero::FlatLayout&, const zero::Bucket& bucket) {
        if (bucket.trainable)
          weights.add_pieces(bucket.range.elements() * plan_.item(), 1, plan_.all);
      });
      out.push_back(weights.described("all_gather", "weights"));
    }
    PlannedTraffic counters;
    counters.add_sums(kTotals, DType::kFloat64, 1, plan_.all);
    if (plan_.stage > 0) counters.add_sums(ExactSum::kWords, DType::kInt64, 1, plan_.shard);
    out.push_back(counters.described("all_reduce", "loss and gradient norm"));
    if (const int64_t weights = coded_weights(plan_).weights; weights > 0) {
      PlannedTraffic scales;
      scales.add_sums(weights * nn::Fp8Linears::kRoles, DType::kFloat32, 1, plan_.all);
      out.push_back(scales.described("all_reduce", "fp8 scales"));
    }
    for (const zero::GradientDomain& domain : plan_.layout->domains()) {
      if (plan_.stage > 0) add_optimizer(domain, out);
    }
    return out;
  }

 private:
  void add_gradients(Json& out) const {
    const int64_t passes = plan_.config.batch.accumulation;
    const bool sums = plan_.stage == 0 || !plan_.share.reduce_scatter;
    PlannedTraffic plain, inside, across;
    plan_.for_each_bucket([&](const zero::FlatLayout& flat, const zero::Bucket& bucket) {
      if (!bucket.trainable) return;
      const int64_t n = bucket.range.elements();
      if (plan_.by_node && !bucket.exact) {
        const int64_t bytes = flat.world() * zero::piece_bytes(flat, bucket, 4);
        if (plan_.shard.local > 1) inside.add_pieces(bytes, passes, {plan_.shard.local, 1});
        across.add_pieces(bytes / plan_.shard.local, passes, {1, plan_.shard.nodes});
      } else if (sums) {
        plain.add_sums(n, plan_.share.comm_dtype, passes, plan_.shard);
      } else {
        plain.add_pieces(n * dtype_size(plan_.share.comm_dtype), passes, plan_.shard);
      }
    });
    if (plain.calls > 0) {
      out.push_back(plain.described(sums ? "all_reduce" : "reduce_scatter", "gradients"));
    }
    if (inside.calls > 0) out.push_back(inside.described("all_to_all", "gradients in a node"));
    if (across.calls > 0) {
      out.push_back(across.described("all_to_all", "gradients across nodes"));
    }
    const int copies = plan_.world / plan_.shard.ranks();
    if (copies > 1) {
      PlannedTraffic replicas;
      replicas.add_sums(plan_.layout->held(zero::StateRole::kGradients),
                        dtype_of(plan_.config.precision.grad_accum_dtype), 1,
                        plan_.places_of(copies, plan_.shard.ranks()));
      out.push_back(replicas.described("all_reduce", "gradients of replicas"));
    }
  }

  void add_gathers(Json& out) const {
    const GatherCounts counts = planned_gathers(plan_);
    PlannedTraffic weights, near;
    weights.add_pieces(counts.all.bytes, 1, plan_.shard);
    weights.calls = counts.all.calls;
    out.push_back(weights.described("all_gather", "weights"));
    if (counts.near.calls == 0) return;
    near.add_pieces(counts.near.bytes, 1, plan_.places_of(plan_.share.groups.secondary, 1));
    near.calls = counts.near.calls;
    out.push_back(near.described("all_gather", "weights of near ranks"));
  }

  // What LAMB and Muon move to see whole tensors of a domain that are cut.
  void add_optimizer(const zero::GradientDomain& domain, Json& out) const {
    const OptimizerConfig optimizer = plan_.config.optimizer.value_or(OptimizerConfig{});
    std::vector<nn::ParamId> ids;
    std::vector<optim::TensorPlace> places;
    for (const nn::ParamId id : domain.flat.order()) {
      const nn::Parameter& p = domain.local[id];
      if (!p.trainable) continue;
      ids.push_back(id);
      places.push_back({p.name, p.shape});
    }
    const zero::CommShardGroup peers(domain.flat, std::move(ids), nullptr, nullptr);
    if (optimizer.type == OptimizerType::kLamb) {
      int64_t cut = 0;
      for (size_t i = 0; i < places.size(); ++i) cut += optim::is_cut(peers, i) ? 1 : 0;
      if (cut == 0) return;
      PlannedTraffic norms;
      norms.add_sums(2 * cut * ExactSum::kWords, DType::kInt64, 1, plan_.shard);
      out.push_back(norms.described("all_reduce", "norms of tensors"));
    } else if (optimizer.type == OptimizerType::kMuon) {
      PlannedTraffic matrices;
      for (const optim::MuonRound& round : optim::muon_rounds(places, peers)) {
        int64_t elements = 0, sent = 0;
        for (const size_t tensor : round.tensors) elements += places[tensor].shape.elements();
        for (size_t rank = 1; rank < round.sent.size(); ++rank) {
          sent += round.sent[rank] + round.received[rank];
        }
        matrices.calls += 2;
        matrices.bytes += 2 * elements * int64_t{sizeof(float)};
        const double far = static_cast<double>(sent) * sizeof(float) *
                           static_cast<double>(plan_.world - plan_.per_node) /
                           std::max(1, plan_.world - 1);
        matrices.far += far;
        matrices.near += static_cast<double>(sent) * sizeof(float) - far;
      }
      out.push_back(matrices.described("all_to_all_v", "matrices of Muon"));
    }
  }

  const PlanContext& plan_;
};

}  // namespace

Json plan_collectives(const PlanContext& plan) { return CollectivesPlanner(plan).run(); }

}  // namespace ds
