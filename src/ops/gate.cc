// Checks and launch of gates.
#include "ops/gate.h"

#include "ops/checks.h"

namespace ds::ops {
namespace {

struct GateShape {
  int64_t tokens, experts;
};
GateShape check_scores(const Op& op, const Tensor& scores, const char* name) {
  check_dense(scores, op, name, DType::kFloat32);
  DS_CHECK(scores.dims() == 2 && scores.size(1) >= 1 && scores.size(1) <= INT32_MAX,
           Code::kInvalidArgument, op, ": ", name, " has shape ", scores.shape().text(),
           "; [tokens, experts] with at least one expert is needed");
  return {scores.size(0), scores.size(1)};
}

void check_chosen(const Op& op, const Tensor& chosen, const GateShape& shape, int64_t choices) {
  check_dense(chosen, op, "chosen", DType::kInt32, {shape.tokens, choices});
  DS_CHECK(shape.tokens <= INT32_MAX / std::max<int64_t>(1, choices), Code::kInvalidArgument, op,
           ": ", shape.tokens, " tokens with ", choices, " routes each are too many");
  // A GPU's memory is not read here: what lies there comes from choose_experts.
  if (op.ctx.device->kind() != DeviceKind::kCpu) return;
  const int32_t* const expert = chosen.data<int32_t>();
  for (int64_t i = 0; i < chosen.elements(); ++i) {
    DS_CHECK(expert[i] >= -1 && expert[i] < shape.experts, Code::kInvalidArgument, op, ": chosen[",
             i, "] is ", expert[i], "; -1 to ", shape.experts - 1, " are possible");
  }
}

const uint8_t* token_mask(const Op& op, const Tensor& mask, const char* name, int64_t tokens) {
  if (!mask) return nullptr;
  check_elements(mask, op, name, DType::kUInt8, tokens);
  return mask.data<uint8_t>();
}

kernels::RouteWeights weights_call(const GateRule& rule, const GateShape& shape,
                                   const Tensor& scores, const Tensor& chosen) {
  return {.tokens = shape.tokens,
          .experts = shape.experts,
          .choices = rule.choices,
          .scores = scores.data<float>(),
          .chosen = chosen.data<int32_t>(),
          .normalise = rule.normalise,
          .floor = rule.floor,
          .scale = rule.scale};
}

}  // namespace

void check_gate_rule(const GateRule& r, int64_t experts) {
  DS_CHECK(r.groups >= 1 && r.groups <= kernels::kMostExpertGroups && experts % r.groups == 0,
           Code::kInvalidArgument, experts, " experts cannot be in ", r.groups,
           " groups of equal size, of at most ", kernels::kMostExpertGroups);
  DS_CHECK(r.kept_groups >= 1 && r.kept_groups <= r.groups, Code::kInvalidArgument,
           "a token cannot choose from ", r.kept_groups, " of ", r.groups, " groups of experts");
  DS_CHECK(r.group_best == 1 || r.group_best == 2, Code::kInvalidArgument,
           "groups of experts are compared by their best or their two best, not by ", r.group_best);
  const int64_t most = r.kept_groups * (experts / r.groups);
  DS_CHECK(r.choices >= 1 && r.choices <= most, Code::kInvalidArgument, "a token cannot choose ",
           r.choices, " of ", most, " experts");
}

void gate_noise(const OpContext& ctx, const NoiseOptions& noise, const Tensor& factors,
                Tensor& out) {
  const Op op{ctx, "gate_noise"};
  check_dense(out, op, "out", DType::kFloat32);
  if (factors) check_dense(factors, op, "factors", DType::kFloat32, out.shape());
  DS_CHECK(out.dims() >= 1, Code::kInvalidArgument, op, ": out needs a dimension of samples");
  const int64_t samples = out.size(0);
  if (samples == 0) return;
  run(ctx, [&](auto& on) {
    kernels::gate_noise({.kind = noise.kind,
                         .stream = noise.stream,
                         .samples = samples,
                         .per_sample = out.elements() / samples,
                         .strength = noise.strength,
                         .factors = factors ? factors.data<float>() : nullptr,
                         .out = out.data<float>()},
                        on);
  });
}

void gate_scores(const OpContext& ctx, GateScores kind, const Tensor& logits, Tensor& scores) {
  const Op op{ctx, "gate_scores"};
  const GateShape shape = check_scores(op, logits, "logits");
  check_dense(scores, op, "scores", DType::kFloat32, logits.shape());
  run(ctx, [&](auto& on) {
    kernels::gate_scores(kind, logits.data<float>(), shape.tokens, shape.experts,
                         scores.data<float>(), on);
  });
}

void choose_experts(const OpContext& ctx, const GateRule& rule, const Tensor& first,
                    const Tensor& others, const Tensor& bias, const Tensor& used, Tensor& chosen) {
  const Op op{ctx, "choose_experts"};
  const GateShape shape = check_scores(op, first, "first");
  check_gate_rule(rule, shape.experts);
  if (others) check_dense(others, op, "others", DType::kFloat32, first.shape());
  if (bias) check_dense(bias, op, "bias", DType::kFloat32, {shape.experts});
  check_dense(chosen, op, "chosen", DType::kInt32, {shape.tokens, rule.choices});
  run(ctx, [&](auto& on) {
    kernels::choose_experts({.tokens = shape.tokens,
                             .experts = shape.experts,
                             .choices = rule.choices,
                             .first = first.data<float>(),
                             .others = (others ? others : first).data<float>(),
                             .bias = bias ? bias.data<float>() : nullptr,
                             .used = token_mask(op, used, "used", shape.tokens),
                             .groups = rule.groups,
                             .kept_groups = rule.kept_groups,
                             .group_best = rule.group_best,
                             .chosen = chosen.data<int32_t>()},
                            on);
  });
}

void route_weights(const OpContext& ctx, const GateRule& rule, const Tensor& scores,
                   const Tensor& chosen, Tensor& weights) {
  const Op op{ctx, "route_weights"};
  const GateShape shape = check_scores(op, scores, "scores");
  check_chosen(op, chosen, shape, rule.choices);
  check_dense(weights, op, "weights", DType::kFloat32, chosen.shape());
  run(ctx, [&](auto& on) {
    kernels::route_weights(weights_call(rule, shape, scores, chosen), weights.data<float>(), on);
  });
}

void gate_sums(const OpContext& ctx, GateScores kind, const Tensor& scores,
               const CountedRoutes& counted, Tensor& probabilities, Tensor& routes,
               const Tensor& all) {
  const Op op{ctx, "gate_sums"};
  const Tensor& chosen = counted.chosen;
  const GateShape shape = check_scores(op, scores, "scores");
  check_dense(chosen, op, "chosen");
  check_chosen(op, chosen, shape, chosen.size(-1));
  DS_CHECK(counted.choices >= 0 && counted.choices <= chosen.size(-1), Code::kInvalidArgument, op,
           ": ", counted.choices, " of ", chosen.size(-1), " choices cannot be counted");
  check_dense(probabilities, op, "probabilities", DType::kFloat64, {shape.experts});
  check_dense(routes, op, "routes", DType::kFloat64, {shape.experts});
  if (all) check_elements(all, op, "all", DType::kFloat64, 1);
  const auto scratch_of = [&](auto& on) {
    return 2 * kernels::gate_sums_scratch(shape.tokens, shape.experts, on);
  };
  run(ctx, scratch_of, [&](float* scratch, auto& on) {
    kernels::gate_sums({.kind = kind,
                        .tokens = shape.tokens,
                        .experts = shape.experts,
                        .choices = chosen.size(-1),
                        .scores = scores.data<float>(),
                        .chosen = chosen.data<int32_t>(),
                        .counted_choices = counted.choices,
                        .counted = token_mask(op, counted.tokens, "counted", shape.tokens),
                        .probabilities = probabilities.data<double>(),
                        .routes = routes.data<double>(),
                        .all = all ? all.data<double>() : nullptr,
                        .scratch = reinterpret_cast<double*>(scratch)},
                       on);
  });
}

void gate_z_sum(const OpContext& ctx, const Tensor& logits, const Tensor& counted, Tensor& sum) {
  const Op op{ctx, "gate_z_sum"};
  const GateShape shape = check_scores(op, logits, "logits");
  check_elements(sum, op, "sum", DType::kFloat64, 1);
  const auto scratch_of = [&](auto& on) { return 2 * kernels::gate_z_scratch(shape.tokens, on); };
  run(ctx, scratch_of, [&](float* scratch, auto& on) {
    kernels::gate_z_sum({.tokens = shape.tokens,
                         .experts = shape.experts,
                         .logits = logits.data<float>(),
                         .counted = token_mask(op, counted, "counted", shape.tokens),
                         .sum = sum.data<double>(),
                         .scratch = reinterpret_cast<double*>(scratch)},
                        on);
  });
}

void gate_backward(const OpContext& ctx, const GateRule& rule, const Tensor& logits,
                   const Tensor& scores, const Tensor& chosen, const GateGradients& gradients,
                   Tensor& dlogits) {
  const Op op{ctx, "gate_backward"};
  const GateShape shape = check_scores(op, scores, "scores");
  check_dense(logits, op, "logits", DType::kFloat32, scores.shape());
  check_dense(dlogits, op, "dlogits", DType::kFloat32, scores.shape());
  check_chosen(op, chosen, shape, rule.choices);
  const Tensor& dweights = gradients.dweights;
  if (dweights) check_dense(dweights, op, "dweights", DType::kFloat32, chosen.shape());
  if (gradients.balance) {
    check_dense(gradients.balance, op, "balance", DType::kFloat32, {shape.experts});
  }
  run(ctx, [&](auto& on) {
    kernels::gate_backward(
        {.kind = rule.scores,
         .forward = weights_call(rule, shape, scores, chosen),
         .dweights = dweights ? dweights.data<float>() : nullptr,
         .balance = gradients.balance ? gradients.balance.data<float>() : nullptr,
         .counted = token_mask(op, gradients.counted, "counted", shape.tokens),
         .z = gradients.z,
         .logits = logits.data<float>(),
         .dlogits = dlogits.data<float>()},
        on);
  });
}

}  // namespace ds::ops
