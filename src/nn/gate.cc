#include "nn/gate.h"

#include "ops/elementwise.h"

namespace ds::nn {

ops::Routes make_routes(const MakeTensor& make, int64_t tokens, int64_t choices, int64_t experts) {
  const auto ints = [&](const Shape& shape) { return make(DType::kInt32, shape); };
  return {ints({tokens, choices}), ints({experts + 1}), ints({tokens * choices}),
          ints({tokens, choices})};
}

GateForward::GateForward(const OpContext& ctx, const Gate& gate, const Tensor& logits,
                         const MakeTensor& make)
    : ctx_(ctx), gate_(gate), logits_(logits) {
  scores = make(DType::kFloat32, logits.shape());
  ops::gate_scores(ctx, gate.rule.scores, logits, scores);
  routes = make_routes(make, logits.size(0), gate.rule.choices, logits.size(1));
}

// [tokens, experts], counted by sample.
Tensor GateForward::drawn(ops::GateNoise kind, const RandomStream& stream, int64_t samples) const {
  Tensor out = ctx_.workspace(DType::kFloat32, logits_.shape());
  Tensor by_sample = out.view({samples, samples == 0 ? 0 : out.elements() / samples});
  ops::gate_noise(ctx_, {kind, stream}, Tensor(), by_sample);
  return out;
}

void GateForward::choose(const Tensor& bias, const GateDraws& draws) {
  // Logits to which random numbers are added, so that the largest is drawn from their softmax.
  const auto sampled = [&](GateDraws::Kind kind) {
    Tensor noisy = drawn(ops::GateNoise::kGumbel, draws.stream(kind), draws.samples);
    ops::add(ctx_, noisy, logits_, noisy);
    return noisy;
  };
  Tensor first = scores, others;
  // What is drawn is drawn by logits, and compared by them with what is not.
  if (gate_.sample_first) first = sampled(GateDraws::kFirst);
  if (gate_.sample_others) others = sampled(GateDraws::kOthers);
  if (!others && first.raw() != scores.raw()) others = scores;
  ops::choose_experts(ctx_, gate_.rule, first, others, bias, Tensor(), routes.chosen);
}

namespace {

// The first `counted_choices` of a token, by default all.
int64_t counted_choices(const Gate& gate) {
  return gate.losses.counted_choices == 0 ? gate.rule.choices : gate.losses.counted_choices;
}

}  // namespace

// Probabilities and routes by expert, the number of tokens, and the z-loss's sum in one tensor,
// which is one copy from a GPU.
void GateForward::count(const Tensor& counted) {
  const int64_t experts = routes.experts();
  const Tensor sums = ctx_.workspace(DType::kFloat64, {2 * experts + 2});
  Tensor probabilities = sums.slice(0, 0, experts), counts = sums.slice(0, experts, 2 * experts);
  ops::gate_sums(ctx_, gate_.rule.scores, scores,
                 {.chosen = routes.chosen, .choices = counted_choices(gate_), .tokens = counted},
                 probabilities, counts, sums.slice(0, 2 * experts, 2 * experts + 1));
  Tensor z = sums.slice(0, 2 * experts + 1, 2 * experts + 2);
  if (gate_.losses.z != 0) ops::gate_z_sum(ctx_, logits_, counted, z);
  sums_ = Fetched(sums);
}

void GateForward::sort() { ops::sort_routes(ctx_, routes, gate_.first_choices_first); }

RouterRecord::Layer GateForward::sums() {
  const int64_t experts = routes.experts();
  const double* const sums = sums_.host().data<double>();
  RouterRecord::Layer layer;
  layer.losses = gate_.losses;
  layer.losses.counted_choices = counted_choices(gate_);
  layer.chosen = loads();
  layer.all_tokens = routes.tokens();
  layer.probabilities.assign(sums, sums + experts);
  layer.routes.assign(sums + experts, sums + 2 * experts);
  layer.tokens = sums[2 * experts];
  if (layer.losses.z != 0) layer.z_sum = sums[2 * experts + 1];
  return layer;
}

void GateForward::limit(const GateDraws& draws) {
  if (gate_.drop == DropPolicy::kNone) return;
  const double factor = gate_.capacity_factor * static_cast<double>(gate_.rule.choices);
  const int64_t capacity =
      ops::expert_capacity(routes.tokens(), routes.experts(), factor, gate_.min_capacity);
  Tensor key, places;
  if (gate_.drop == DropPolicy::kProbability) key = scores;
  if (gate_.drop == DropPolicy::kRandom) {
    key = drawn(ops::GateNoise::kUniform, draws.stream(GateDraws::kDropped), draws.samples);
  }
  ops::limit_routes(ctx_, routes, capacity,
                    key ? ops::RoutePriority::kScore : ops::RoutePriority::kOrder, key, places);
}

std::vector<int64_t> GateForward::loads() const {
  std::vector<int64_t> loads;
  for (int64_t e = 0; e < routes.experts(); ++e) {
    loads.push_back(routes.begin(e + 1) - routes.begin(e));
  }
  return loads;
}

void GateForward::weigh(Tensor& weights) const {
  ops::route_weights(ctx_, gate_.rule, scores, routes.chosen, weights);
}

void add_loss_gradients(const OpContext& ctx, const RouterRecord& record, int64_t index,
                        float by_balance, float by_z, ops::GateGradients& gradients) {
  const RouterRecord::Layer& layer = record.layers().at(static_cast<size_t>(index));
  if (layer.losses.z != 0 && layer.tokens > 0) {
    gradients.z = static_cast<float>(double{layer.losses.z} / layer.tokens) * by_z;
  }
  if (by_balance == 0) return;
  std::vector<float> balance = record.balance_gradient(index);
  if (balance.empty()) return;
  for (float& gradient : balance) gradient *= by_balance;
  gradients.balance = ctx.workspace(DType::kFloat32, {std::ssize(balance)});
  copy_from_host(balance.data(), gradients.balance);
}

}  // namespace ds::nn
