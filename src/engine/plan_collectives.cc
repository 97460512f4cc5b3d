#include "engine/plan_collectives.h"

#include <algorithm>
#include <vector>

#include "base/exact_sum.h"
#include "engine/expert_loads.h"
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
    if (plan_.expert_ranks > 1) add_exchanges(out);
    if (plan_.stage == 3) {
      add_gathers(out);
    } else if (plan_.stage > 0) {
      PlannedTraffic weights;
      for_each_shared_bucket([&](const Places& places, const zero::Bucket& bucket) {
        weights.add_pieces(bucket.range.elements() * plan_.item(), 1, places);
      });
      out.push_back(weights.described("all_gather", "weights"));
    }
    PlannedTraffic counters;
    counters.add_sums(kTotals + (plan_.config.distillation.enabled ? 2 : 0), DType::kFloat64, 1,
                      plan_.all);
    if (plan_.stage > 0) counters.add_sums(ExactSum::kWords, DType::kInt64, 1, plan_.shard);
    if (plan_.stage == 0 && plan_.expert_ranks > 1) {  // of experts
      counters.add_sums(ExactSum::kWords, DType::kInt64, 1, plan_.places_of(plan_.expert_ranks, 1));
    }
    out.push_back(counters.described("all_reduce", "loss and gradient norm"));
    if (has_experts()) add_loads(out);
    if (const int64_t weights = coded_weights(plan_).weights; weights > 0) {
      PlannedTraffic scales;
      scales.add_sums(weights * nn::Fp8Linears::kRoles, DType::kFloat32, 1, plan_.all);
      out.push_back(scales.described("all_reduce", "fp8 scales"));
    }
    if (plan_.stage > 0) add_optimizer(out);
    return out;
  }

 private:
  // body(ranks, trainable bucket that they share) where these are several.
  template <class Body>
  void for_each_shared_bucket(const Body& body) const {
    for (const zero::Bucket& bucket : plan_.flat().buckets()) {
      const Places places = plan_.places_of(bucket.domain);
      if (bucket.trainable && places.ranks() > 1) body(places, bucket);
    }
  }

  bool has_experts() const {
    return plan_.model.architecture != nullptr && plan_.model.architecture->info().experts > 0;
  }

  // Who went to which expert, over all ranks.
  void add_loads(Json& out) const {
    const models::ArchitectureInfo& info = plan_.model.architecture->info();
    PlannedTraffic loads;
    loads.add_sums(ExpertLoads::shared_numbers(info.layers, info.experts), DType::kFloat64, 1,
                   plan_.all);
    out.push_back(loads.described("all_reduce", "loads of experts"));
  }

  // Rows of tokens between the ranks that share experts, where each expert gets as many and none is
  // dropped: two ways and their gradients, and two ways more where a layer runs again.
  void add_exchanges(Json& out) const {
    const models::ArchitectureInfo& info = plan_.model.architecture->info();
    const nn::ParameterSet& parameters = *plan_.model.parameters;
    const models::Recompute again = plan_.recompute();
    const Places places = plan_.places_of(plan_.expert_ranks, 1);
    // One way from rank to rank; or in two steps, each of which moves all of it.
    const std::vector<Places> steps = plan_.two_steps
                                          ? std::vector{Places{1, places.nodes}, {places.local, 1}}
                                          : std::vector{places};
    PlannedTraffic counts, rows;
    for (const int64_t layer : info.expert_layers) {
      const bool twice = again.segments > 0 || again.alone(layer);
      const int64_t passes = plan_.config.batch.accumulation * (twice ? 2 : 1);
      for (const Places& step : steps) {
        counts.add_exchanges(info.experts * int64_t{sizeof(int64_t)}, passes, step);
      }
      const int64_t sent = plan_.config.batch.micro_batch * plan_.length() *
                           info.experts_per_token * parameters[info.output].shape[1] * plan_.item();
      for (const Places& step : steps) {
        rows.add_exchanges(sent, 2 * (passes + plan_.config.batch.accumulation), step);
      }
    }
    out.push_back(counts.described("all_to_all", "how many tokens go to each expert"));
    out.push_back(rows.described("all_to_all_v", "tokens to experts and back, at equal loads"));
  }

  void add_gradients(Json& out) const {
    const int64_t passes = plan_.config.batch.accumulation;
    const bool sums = plan_.stage == 0 || !plan_.share.reduce_scatter;
    PlannedTraffic plain, inside, across;
    for_each_shared_bucket([&](const Places& places, const zero::Bucket& bucket) {
      const zero::FlatLayout& flat = plan_.flat();
      const int64_t n = bucket.range.elements();
      if (plan_.by_node && !bucket.exact) {
        const int64_t bytes = flat.world(bucket) * zero::piece_bytes(flat, bucket, 4);
        if (plan_.shard.local > 1) inside.add_pieces(bytes, passes, {plan_.shard.local, 1});
        across.add_pieces(bytes / plan_.shard.local, passes, {1, plan_.shard.nodes});
      } else if (sums) {
        plain.add_sums(n, plan_.share.comm_dtype, passes, places);
      } else {
        plain.add_pieces(n * dtype_size(plan_.share.comm_dtype), passes, places);
      }
    });
    if (plain.calls > 0) {
      out.push_back(plain.described(sums ? "all_reduce" : "reduce_scatter", "gradients"));
    }
    if (inside.calls > 0) out.push_back(inside.described("all_to_all", "gradients in a node"));
    if (across.calls > 0) {
      out.push_back(across.described("all_to_all", "gradients across nodes"));
    }
    add_replicas(out);
  }

  // What ranks average that hold the same pieces, all of a domain at once.
  void add_replicas(Json& out) const {
    PlannedTraffic replicas;
    for (size_t i = 0; i < plan_.layout->domains().size(); ++i) {
      const auto domain = static_cast<int>(i);
      const int ranks = plan_.places_of(domain).ranks();
      const int copies = plan_.layout->domains()[i].ranks / ranks;
      int64_t elements = 0;
      for (const zero::Bucket& bucket : plan_.flat().buckets()) {
        if (bucket.trainable && bucket.domain == domain) elements += bucket.piece;
      }
      if (copies == 1 || elements == 0) continue;
      replicas.add_sums(elements, dtype_of(plan_.config.precision.grad_accum_dtype), 1,
                        plan_.places_of(copies, ranks * plan_.stride_of(domain)));
    }
    if (replicas.calls > 0) {
      out.push_back(replicas.described("all_reduce", "gradients of replicas"));
    }
  }

  void add_gathers(Json& out) const {
    const GatherCounts gathers = planned_gathers(plan_);
    PlannedTraffic weights, near;
    int64_t calls = 0, near_calls = 0;
    for (size_t i = 0; i < gathers.all.size(); ++i) {
      const auto domain = static_cast<int>(i);
      const Places places = plan_.places_of(domain);
      if (places.ranks() == 1) continue;  // each has what it needs
      weights.add_pieces(gathers.all[i].bytes, 1, places);
      calls += gathers.all[i].calls;
      near.add_pieces(gathers.near[i].bytes, 1,
                      plan_.places_of(plan_.near_ranks(domain), plan_.stride_of(domain)));
      near_calls += gathers.near[i].calls;
    }
    weights.calls = calls;
    out.push_back(weights.described("all_gather", "weights"));
    if (near_calls == 0) return;
    near.calls = near_calls;
    out.push_back(near.described("all_gather", "weights of near ranks"));
  }

  // What LAMB and Muon move to see whole tensors that are cut.
  void add_optimizer(Json& out) const {
    const OptimizerConfig optimizer = plan_.config.optimizer.value_or(OptimizerConfig{});
    std::vector<nn::ParamId> ids;
    std::vector<optim::TensorPlace> places;
    for (const nn::ParamId id : plan_.flat().order()) {
      const nn::Parameter& p = (*plan_.model.parameters)[id];
      if (!p.trainable) continue;
      ids.push_back(id);
      places.push_back({p.name, p.shape});
    }
    PlannedTraffic norms, matrices;
    for (size_t i = 0; i < plan_.layout->domains().size(); ++i) {
      const auto domain = static_cast<int>(i);
      if (plan_.flat().world(domain) == 1) continue;
      const zero::CommShardGroup ranks(plan_.flat(), domain, ids, nullptr, nullptr);
      const Places among = plan_.places_of(domain);
      if (optimizer.type == OptimizerType::kLamb) add_norms(ranks, among, norms);
      if (optimizer.type == OptimizerType::kMuon) add_matrices(ranks, places, among, matrices);
    }
    if (norms.calls > 0) out.push_back(norms.described("all_reduce", "norms of tensors"));
    if (matrices.calls > 0) out.push_back(matrices.described("all_to_all_v", "matrices of Muon"));
  }

  static void add_norms(const optim::ShardGroup& group, const Places& among,
                        PlannedTraffic& norms) {
    int64_t cut = 0;
    for (const size_t tensor : group.tensors()) cut += optim::is_cut(group, tensor) ? 1 : 0;
    if (cut > 0) norms.add_sums(2 * cut * ExactSum::kWords, DType::kInt64, 1, among);
  }

  static void add_matrices(const optim::ShardGroup& group,
                           const std::vector<optim::TensorPlace>& places, const Places& among,
                           PlannedTraffic& matrices) {
    for (const optim::MuonRound& round : optim::muon_rounds(places, group)) {
      int64_t elements = 0, sent = 0;
      for (const size_t tensor : round.tensors) elements += places[tensor].shape.elements();
      for (size_t rank = 1; rank < round.sent.size(); ++rank) {
        sent += round.sent[rank] + round.received[rank];
      }
      matrices.calls += 2;
      matrices.bytes += 2 * elements * int64_t{sizeof(float)};
      const double far = static_cast<double>(sent) * sizeof(float) *
                         static_cast<double>(among.ranks() - among.local) /
                         std::max(1, among.ranks() - 1);
      matrices.far += far;
      matrices.near += static_cast<double>(sent) * sizeof(float) - far;
    }
  }

  const PlanContext& plan_;
};

}  // namespace

Json plan_collectives(const PlanContext& plan) { return CollectivesPlanner(plan).run(); }

}  // namespace ds
