#include "nn/moe.h"

#include <memory>
#include <optional>
#include <utility>

#include "nn/expert_exchange.h"
#include "nn/profile.h"
#include "ops/elementwise.h"
#include "ops/gemv.h"
#include "ops/linear.h"
#include "ops/routes.h"

namespace ds::nn {
namespace {

using ops::Routes;
using RoutesPtr = std::shared_ptr<const Routes>;

// Routes and what the output of each weighs, fp32 [tokens, choices].
struct Routed {
  RoutesPtr routes;
  Value weights;
};

Tensor as_float(const OpContext& ctx, const Tensor& x) {
  if (!x || x.dtype() == DType::kFloat32) return x;
  Tensor wide = ctx.workspace(DType::kFloat32, x.shape());
  ops::cast(ctx, x, wide);
  return wide;
}

// x in fp32.
Value widened(Tape& tape, const Value& x) {
  if (x.data.dtype() == DType::kFloat32) return x;
  Value y = tape.make_value(tape.new_activation(DType::kFloat32, x.data.shape()));
  ops::cast(tape.ctx(), x.data, y.data);
  tape.record([in = x.slot, type = x.data.dtype(), out = y.slot](Tape& t) {
    if (!*out || !in) return;
    bool exclusive = false;
    const Tensor dy = out->take(exclusive);
    Tensor dx = t.new_activation(type, dy.shape());
    ops::cast(t.ctx(), dy, dx);
    in->add(t.ctx(), std::move(dx), true);
  });
  return y;
}

// [samples, ...]: how random numbers are counted.
Tensor by_sample(const Tensor& x, int64_t samples) {
  return x.view({samples, samples == 0 ? 0 : x.elements() / samples});
}

// x in fp32, each number times one of its own from 1 - strength to 1 + strength.
Value jittered(Tape& tape, const Value& x, float strength, int64_t samples) {
  const ops::NoiseOptions noise{ops::GateNoise::kJitter, tape.next_stream(), strength};
  const auto apply = [noise, samples](Tape& t, const Tensor& from, const Tensor& to) {
    Tensor out = by_sample(to, samples);
    ops::gate_noise(t.ctx(), noise, by_sample(from, samples), out);
  };
  Value y = tape.make_value(tape.new_activation(DType::kFloat32, x.data.shape()));
  apply(tape, x.data, y.data);
  tape.record([in = x.slot, out = y.slot, apply](Tape& t) {
    if (!*out || !in) return;
    bool exclusive = false;
    const Tensor dy = out->take(exclusive);
    Tensor dx = exclusive ? dy : t.new_activation(dy.dtype(), dy.shape());
    apply(t, dy, dx);  // the same numbers again
    in->add(t.ctx(), std::move(dx), true);
  });
  return y;
}

// A context whose products of fp32 are not rounded.
OpContext exact(OpContext ctx) {
  ctx.gpu.tf32 = false;
  return ctx;
}

// x w^T + b in fp32 whatever the weights' type: routers choose by small differences.
Value float_linear(Tape& tape, const Value& x, const Projection& p) {
  const OperatorScope op(tape, "router", p.weight, true);
  Value y;
  {
    const ParameterGuard w(tape.weights(), p.weight), b(tape.weights(), p.bias);
    y = tape.make_value(tape.new_activation(DType::kFloat32, {x.data.size(0), (*w).size(0)}));
    const OpContext ctx = exact(tape.ctx());
    // As in linear layers: few rows have the bits of each alone.
    const bool few = !tape.recording() && !tape.training() && ops::few_rows(x.data);
    const auto multiply = few ? ops::gemv : ops::linear;
    multiply(ctx, x.data, as_float(ctx, *w), as_float(ctx, *b), y.data);
    if (op) {
      const Arithmetic once = Arithmetic::products(x.data.size(0) * (*w).elements());
      Arithmetic both = once;
      both += once;
      op.work(once, both);
    }
  }
  tape.used(p.weight);
  tape.used(p.bias);
  tape.record([x, p, out = y.slot](Tape& t) {
    if (*out) {
      const OpContext ctx = exact(t.ctx());
      bool exclusive = false;
      const Tensor dy = out->take(exclusive);
      if (x.slot) {
        const ParameterGuard w(t.weights(), p.weight);
        Tensor dx = t.new_activation(DType::kFloat32, x.data.shape());
        ops::linear_grad_input(ctx, dy, as_float(ctx, *w), dx);
        x.slot->add(ctx, std::move(dx), true);
      }
      if (GradientTarget dw = t.gradients().gradient_target(p.weight); dw.sum) {
        ops::linear_grad_weight(ctx, dy, x.data, dw.sum, dw.add);
      }
      if (p.bias != kNoParam) {
        if (Tensor db = t.gradients().gradient(p.bias)) ops::linear_grad_bias(ctx, dy, db);
      }
    }
    t.used_backward(p.weight);
    t.used_backward(p.bias);
  });
  return y;
}

MakeTensor activations_of(Tape& tape) {
  return [&tape](DType dtype, const Shape& shape) { return tape.new_activation(dtype, shape); };
}

std::shared_ptr<Routes> empty_routes(Tape& tape, int64_t tokens, int64_t choices, int64_t experts) {
  return std::make_shared<Routes>(make_routes(activations_of(tape), tokens, choices, experts));
}

// What a router's backward needs of its forward.
struct GatePass {
  ops::GateRule rule;
  Tensor logits, scores;
  RouterRecord* record = nullptr;
  int64_t index = 0;
  Tensor counted;
};

void record_gate(Tape& tape, const Value& logits, const Routed& routed, const GatePass& pass) {
  tape.record([in = logits.slot, routes = routed.routes, out = routed.weights.slot, pass](Tape& t) {
    if (!in) return;
    ops::GateGradients gradients;
    if (pass.record != nullptr) {
      gradients.counted = pass.counted;
      add_loss_gradients(t.ctx(), *pass.record, pass.index, t.loss_gradient(), t.loss_gradient(),
                         gradients);
    }
    bool exclusive = false;
    if (*out) gradients.dweights = out->take(exclusive);
    if (!gradients.dweights && !gradients.balance && gradients.z == 0) return;
    Tensor dlogits = t.new_activation(DType::kFloat32, pass.logits.shape());
    ops::gate_backward(t.ctx(), pass.rule, pass.logits, pass.scores, routes->chosen, gradients,
                       dlogits);
    in->add(t.ctx(), std::move(dlogits), true);
  });
}

// Every token goes to each of a few parts, with its scores as weights.
Routed route_to_all(Tape& tape, const Value& logits, ops::GateScores kind) {
  const int64_t tokens = logits.data.size(0), parts = logits.data.size(1);
  const auto routes = empty_routes(tape, tokens, parts, parts);
  ops::all_routes(tape.ctx(), *routes);
  GatePass pass;
  pass.rule.scores = kind;
  pass.rule.choices = parts;
  pass.logits = logits.data;
  pass.scores = tape.new_activation(DType::kFloat32, logits.data.shape());
  ops::gate_scores(tape.ctx(), kind, logits.data, pass.scores);
  Routed routed{routes, tape.make_value(pass.scores)};
  record_gate(tape, logits, routed, pass);
  return routed;
}

// Nothing is drawn in evaluation, which gives up the last tokens where training gives up any.
Gate gate_of(const Router& router, bool training) {
  Gate gate;
  gate.rule = router.rule;
  gate.losses = router.losses;
  gate.drop = router.drop;
  if (router.drop == DropPolicy::kRandom && !training) gate.drop = DropPolicy::kPosition;
  gate.capacity_factor = training ? router.capacity_factor : router.eval_capacity_factor;
  gate.min_capacity = router.min_capacity;
  gate.first_choices_first = router.drop == DropPolicy::kPosition && router.first_choices_first;
  gate.sample_first = training && router.sample_first;
  gate.sample_others = training && router.sample_others;
  return gate;
}

Routed route(Tape& tape, const Value& x, const Moe& layer, const MoePass& moe_pass,
             int64_t samples) {
  const Router& router = layer.router;
  Value seen = widened(tape, x);
  if (router.jitter > 0 && tape.training()) {
    seen = jittered(tape, seen, router.jitter, samples);
  }
  const Value logits = float_linear(tape, seen, {router.weight, kNoParam});
  const GateDraws draws{[&tape](GateDraws::Kind) { return tape.next_stream(); }, samples};
  GateForward gate(tape.ctx(), gate_of(router, tape.training()), logits.data, activations_of(tape));
  GatePass pass;
  pass.rule = router.rule;
  pass.logits = logits.data;
  pass.scores = gate.scores;
  pass.record = moe_pass.record;
  pass.index = layer.index;
  if (moe_pass.counted) pass.counted = moe_pass.counted.view({logits.data.size(0)});
  {
    const ParameterGuard bias(tape.weights(), router.bias);
    gate.choose(*bias, draws);
  }
  if (pass.record != nullptr) gate.count(pass.counted);
  gate.sort();
  std::optional<RouterRecord::Layer> sums;
  if (pass.record != nullptr) sums = gate.sums();
  gate.limit(draws);
  if (sums) {
    sums->kept = gate.loads();
    pass.record->set(layer.index, std::move(*sums));
  }
  const Value weights =
      tape.make_value(tape.new_activation(DType::kFloat32, gate.routes.chosen.shape()));
  Tensor numbers = weights.data;
  gate.weigh(numbers);
  Routed routed{std::make_shared<const Routes>(std::move(gate.routes)), weights};
  record_gate(tape, logits, routed, pass);
  return routed;
}

// The rows of each expert, as parts of one tensor.
std::vector<Tensor> parts_of(const Tensor& rows, const Routes& routes) {
  std::vector<Tensor> parts;
  for (int64_t e = 0; e < routes.experts(); ++e) {
    parts.push_back(rows.slice(0, routes.begin(e), routes.begin(e + 1)));
  }
  return parts;
}

std::vector<Value> dispatch(Tape& tape, const Value& x, const RoutesPtr& routes) {
  const OperatorScope op(tape, "dispatch");
  Tensor rows = tape.new_activation(x.data.dtype(), {routes->all_rows(), x.data.size(1)});
  ops::gather_rows(tape.ctx(), *routes, x.data, Tensor(), rows);
  std::vector<Value> parts;
  std::vector<std::shared_ptr<GradientSlot>> slots;
  for (Tensor& part : parts_of(rows, *routes)) {
    parts.push_back(tape.make_value(std::move(part)));
    slots.push_back(parts.back().slot);
  }
  tape.record([in = x.slot, type = x.data.dtype(), shape = x.data.shape(), slots, routes](Tape& t) {
    if (!in) return;
    std::vector<Tensor> gradients;
    for (const auto& slot : slots) {
      bool exclusive = false;
      gradients.push_back(slot->take(exclusive));
    }
    Tensor dx = t.new_activation(type, shape);
    ops::sum_rows(t.ctx(), *routes, gradients, Tensor(), dx);
    in->add(t.ctx(), std::move(dx), true);
  });
  return parts;
}

// The rows of all experts as one tensor.
Value gathered(Tape& tape, const Value& x, const RoutesPtr& routes) {
  const OperatorScope op(tape, "dispatch");
  Value rows =
      tape.make_value(tape.new_activation(x.data.dtype(), {routes->all_rows(), x.data.size(1)}));
  ops::gather_rows(tape.ctx(), *routes, x.data, Tensor(), rows.data);
  tape.record([in = x.slot, type = x.data.dtype(), shape = x.data.shape(), out = rows.slot,
               routes](Tape& t) {
    if (!*out || !in) return;
    bool exclusive = false;
    const Tensor drows = out->take(exclusive);
    Tensor dx = t.new_activation(type, shape);
    ops::sum_rows(t.ctx(), *routes, parts_of(drows, *routes), Tensor(), dx);
    in->add(t.ctx(), std::move(dx), true);
  });
  return rows;
}

// Each token's sum of the rows of its routes, times their weights where there are any. `outputs`
// are the rows of each expert, or one tensor of all.
Value combine(Tape& tape, const Routed& routed, const std::vector<Value>& outputs) {
  const OperatorScope op(tape, "combine");
  const RoutesPtr& routes = routed.routes;
  std::vector<Tensor> rows;
  std::vector<std::shared_ptr<GradientSlot>> slots;
  for (const Value& output : outputs) {
    rows.push_back(output.data);
    slots.push_back(output.slot);
  }
  if (outputs.size() == 1) rows = parts_of(outputs.front().data, *routes);
  Value y = tape.make_value(
      tape.new_activation(rows.front().dtype(), {routes->tokens(), rows.front().size(1)}));
  ops::sum_rows(tape.ctx(), *routes, rows, routed.weights.data, y.data);
  tape.record([rows, slots, routes, weights = routed.weights, out = y.slot](Tape& t) {
    if (!*out) return;
    const OpContext& ctx = t.ctx();
    bool exclusive = false;
    const Tensor dy = out->take(exclusive);
    if (weights.slot) {
      Tensor dots = t.new_activation(DType::kFloat32, weights.data.shape());
      ops::route_dots(ctx, *routes, rows, dy, dots);
      weights.slot->add(ctx, std::move(dots), true);
    }
    Tensor drows = t.new_activation(dy.dtype(), {routes->all_rows(), dy.size(1)});
    ops::gather_rows(ctx, *routes, dy, weights.data, drows);
    std::vector<Tensor> parts{drows};
    if (slots.size() > 1) parts = parts_of(drows, *routes);
    for (size_t e = 0; e < parts.size(); ++e) {
      if (slots[e]) slots[e]->add(ctx, std::move(parts[e]), true);
    }
  });
  return y;
}

}  // namespace

Value feed_forward(Tape& tape, const Value& x, const FeedForward& layer, ops::Activation kind) {
  if (layer.gate.weight != kNoParam) {
    const Value gate = linear(tape, x, layer.gate.weight, layer.gate.bias);
    const Value up = linear(tape, x, layer.up.weight, layer.up.bias);
    return gated_linear(tape, gate, up, kind, layer.down);
  }
  if (kind == ops::Activation::kGeluTanh || kind == ops::Activation::kGeluErf) {
    return linear_gelu_linear(
        tape, x, layer.up, layer.down,
        kind == ops::Activation::kGeluTanh ? ops::Gelu::kTanh : ops::Gelu::kErf);
  }
  const Value inner = activation(tape, linear(tape, x, layer.up.weight, layer.up.bias), kind);
  return linear(tape, inner, layer.down.weight, layer.down.bias);
}

namespace {

// Says which weights experts that have rows need, where others need not be read.
void expect_experts(Tape& tape, const ops::Routes& routes, const Moe& layer, int64_t first) {
  std::vector<ParamId> ids;
  for (int64_t e = 0; e < routes.experts(); ++e) {
    if (routes.begin(e) == routes.begin(e + 1)) continue;
    const FeedForward& expert = layer.experts[static_cast<size_t>(first + e)];
    for (const Projection& p : {expert.gate, expert.up, expert.down}) {
      if (p.weight != kNoParam) ids.push_back(p.weight);
    }
  }
  tape.weights().expect(ids);
}

// Each expert's output for its rows of x, the experts from `first` on.
Value run_experts(Tape& tape, const Value& x, const Routed& routed, const Moe& layer,
                  int64_t first) {
  std::vector<Value> outputs = dispatch(tape, x, routed.routes);
  const bool passes_over = !tape.recording() && !tape.weights().in_step();
  if (passes_over) expect_experts(tape, *routed.routes, layer, first);
  auto expert = layer.experts.begin() + first;
  for (Value& output : outputs) {
    const FeedForward& network = *expert++;
    if (passes_over && output.data.size(0) == 0) continue;  // no rows in, none out
    output = feed_forward(tape, output, network, layer.activation);
  }
  return combine(tape, routed, outputs);
}

// The same where each of `ranks` has a part of the experts: an expert's rows are those of one rank
// that has the tokens of all, in their order.
Value run_shared_experts(Tape& tape, const Value& x, const Routed& routed, const Moe& layer,
                         const ExchangeRanks& ranks, const ExpertExchange::Meanwhile& meanwhile) {
  const ExpertExchange exchange(tape.ctx(), ranks, *routed.routes);
  const Value arrived = exchange.to_experts(tape, gathered(tape, x, routed.routes), meanwhile);
  const Value outputs =
      run_experts(tape, arrived, {exchange.arrived(), {}}, layer, exchange.first());
  return combine(tape, routed, {exchange.to_tokens(tape, outputs)});
}

// What the others' rows need of this rank, which sends none and gets its input back. It reads the
// weights that they read, in the same order.
Value serve_others(Tape& tape, const Value& x, const Moe& layer, const ExchangeRanks& ranks,
                   const ExpertExchange::Meanwhile& meanwhile) {
  DS_CHECK(!tape.recording(), Code::kInternal, "a pass for other ranks has no backward");
  const auto none = empty_routes(tape, 0, 1, std::ssize(layer.experts));
  ops::sort_routes(tape.ctx(), *none);
  const ExpertExchange exchange(tape.ctx(), ranks, *none);
  const Value arrived = exchange.to_experts(tape, {x.data.slice(0, 0, 0), nullptr}, meanwhile);
  exchange.to_tokens(tape,
                     run_experts(tape, arrived, {exchange.arrived(), {}}, layer, exchange.first()));
  return x;
}

// Of the network that all tokens go through.
Value run_dense_expert(Tape& tape, const Value& rows, const Moe& layer) {
  Value out = feed_forward(tape, rows, layer.shared, layer.activation);
  if (layer.shared_gate == kNoParam) return out;
  const Value logits = float_linear(tape, widened(tape, rows), {layer.shared_gate, kNoParam});
  return combine(tape, route_to_all(tape, logits, ops::GateScores::kSigmoid), {out});
}

}  // namespace

Value moe(Tape& tape, const Value& x, const Moe& layer, const MoePass& pass) {
  const int64_t width = x.data.size(-1), samples = x.data.size(0);
  const Value rows = reshaped(tape, x, {x.data.elements() / width, width});
  const Routed routed = route(tape, rows, layer, pass, samples);
  const bool has_shared = layer.shared.down.weight != kNoParam;
  Value y, shared;
  if (pass.ranks == nullptr) {
    y = run_experts(tape, rows, routed, layer, 0);
  } else {
    ExpertExchange::Meanwhile meanwhile;
    if (has_shared) meanwhile = [&] { shared = run_dense_expert(tape, rows, layer); };
    y = pass.for_others ? serve_others(tape, rows, layer, *pass.ranks, meanwhile)
                        : run_shared_experts(tape, rows, routed, layer, *pass.ranks, meanwhile);
  }
  if (layer.residual.down.weight != kNoParam) {
    const Value dense = feed_forward(tape, rows, layer.residual, layer.activation);
    const Value logits = float_linear(tape, widened(tape, rows), layer.coefficients);
    y = combine(tape, route_to_all(tape, logits, ops::GateScores::kSoftmax), {y, dense});
  }
  if (has_shared) {
    if (!shared) shared = run_dense_expert(tape, rows, layer);
    y = add(tape, y, shared);
  }
  return reshaped(tape, y, x.data.shape());
}

}  // namespace ds::nn
