// The gate of a mixture of experts, and rows between tokens and experts, on tensors of ds.h.
#include <algorithm>
#include <cfloat>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "capi/args.h"
#include "capi/fence.h"
#include "capi/host_call.h"
#include "capi/json_args.h"
#include "nn/gate.h"
#include "ops/gate.h"
#include "ops/routes.h"

namespace ds::capi {
namespace {

constexpr int64_t kMostRoutes = INT32_MAX;
constexpr double kMostFactor = 1e9;

std::string one_of(const JsonArguments& given, const char* key, const char* fallback,
                   const std::vector<std::string>& choices) {
  std::string text = given.text(key, fallback);
  if (std::ranges::find(choices, text) == choices.end()) {
    given.refuse(key, str_cat("must be one of ", join(choices, ", "), ", not ", printable(text)));
  }
  return text;
}

// The options document of a gate, whose losses are multiplied by 1.
struct GateOptions {
  nn::Gate gate;
  RandomStream random;
  int64_t first_token = 0;

  GateOptions(const char* json, int64_t experts);
  // The numbers of one kind of choice; each token has its own.
  RandomStream stream(uint32_t kind) const {
    RandomStream out = random;
    out.op = kind;
    out.sample = static_cast<uint32_t>(first_token);
    return out;
  }
};

GateOptions::GateOptions(const char* json, int64_t experts) {
  const JsonArguments given(
      json, "options_json",
      {"top_k", "score_function", "route_norm", "route_scale", "num_expert_groups",
       "num_limited_groups", "group_score", "capacity_factor", "min_capacity", "drop_policy",
       "sample", "seed", "first_token", "balance_choices"});
  const bool sigmoid =
      one_of(given, "score_function", "softmax", {"softmax", "sigmoid"}) == "sigmoid";
  ops::GateRule& rule = gate.rule;
  rule.scores = sigmoid ? ops::GateScores::kSigmoid : ops::GateScores::kSoftmax;
  rule.choices = given.integer("top_k", 1, 1, INT32_MAX);
  rule.normalise = given.flag("route_norm", false);
  rule.floor = sigmoid ? 1e-20F : FLT_EPSILON;
  rule.scale = static_cast<float>(given.number("route_scale", 1, -FLT_MAX, FLT_MAX));
  rule.groups = given.integer("num_expert_groups", 1, 1, INT32_MAX);
  rule.kept_groups = given.integer("num_limited_groups", rule.groups, 1, INT32_MAX);
  rule.group_best = one_of(given, "group_score", "max", {"max", "top2"}) == "max" ? 1 : 2;
  ops::check_gate_rule(rule, experts);
  gate.capacity_factor = given.number("capacity_factor", 0, 0, kMostFactor);
  if (given.has("capacity_factor") && gate.capacity_factor == 0) {
    given.refuse("capacity_factor", "must be above 0; without it experts take all that come");
  }
  gate.min_capacity = given.integer("min_capacity", 4, 0, INT32_MAX);
  const std::string drop =
      one_of(given, "drop_policy", "probs", {"probs", "position", "first_choices", "random"});
  gate.first_choices_first = drop == "first_choices";
  if (gate.capacity_factor > 0) {
    gate.drop = drop == "probs"    ? nn::DropPolicy::kProbability
                : drop == "random" ? nn::DropPolicy::kRandom
                                   : nn::DropPolicy::kPosition;
  }
  const std::string sample = one_of(given, "sample", "none", {"none", "first", "others", "all"});
  gate.sample_first = sample == "first" || sample == "all";
  gate.sample_others = sample == "others" || sample == "all";
  random.seed = static_cast<uint64_t>(given.integer("seed", 0, 0, INT64_MAX));
  first_token = given.integer("first_token", 0, 0, UINT32_MAX);
  gate.losses = {.balance = 1,
                 .pooled = false,
                 .counted_choices = given.integer("balance_choices", rule.choices, 1, rule.choices),
                 .per_choice = true,
                 .z = 1};
}

const Tensor& logits_tensor(const TensorObject& object) {
  const Tensor& logits = typed_tensor(object, "logits", DType::kFloat32);
  DS_CHECK(logits.dims() == 2 && logits.size(1) >= 1, Code::kInvalidArgument, "logits has shape ",
           logits.shape().text(), "; [tokens, experts] with at least one expert is needed");
  return logits;
}

// Scores, and room for routes.
nn::GateForward open_gate(const HostCall& call, const GateOptions& options, const Tensor& logits) {
  const int64_t tokens = logits.size(0), choices = options.gate.rule.choices;
  DS_CHECK(tokens <= kMostRoutes / choices, Code::kInvalidArgument, tokens, " tokens with ",
           choices, " choices each are more than 2^31 - 1 routes");
  return {call.ctx(), options.gate, logits,
          [&](DType dtype, const Shape& shape) { return call.empty(dtype, shape); }};
}

void set_row(Tensor& counts, int64_t row, const std::vector<int64_t>& loads) {
  std::ranges::copy(loads, counts.data<int64_t>() + row * std::ssize(loads));
}

// Counts who chose whom, and, into the last row of `counts`, what the losses count.
void set_losses(nn::RouterRecord::Layer layer, Tensor& counts, Tensor& losses) {
  set_row(counts, 0, layer.chosen);
  std::ranges::transform(layer.routes, counts.data<int64_t>() + 2 * std::ssize(layer.routes),
                         [](double n) { return static_cast<int64_t>(n); });
  nn::RouterRecord record;
  record.set(0, std::move(layer));
  losses.data<float>()[0] = static_cast<float>(record.balance_loss());
  losses.data<float>()[1] = static_cast<float>(record.z_loss());
}

// The losses of one gate, as those of a model with one layer of experts, by what their gradients
// need.
nn::RouterRecord record_of(const GateOptions& options, const Tensor& counts, int64_t tokens) {
  const int64_t experts = counts.size(1);
  const int64_t* const counted = counts.data<int64_t>() + 2 * experts;
  nn::RouterRecord::Layer layer;
  layer.losses = options.gate.losses;
  layer.tokens = static_cast<double>(tokens);
  layer.routes.assign(counted, counted + experts);
  nn::RouterRecord record;
  record.set(0, std::move(layer));
  return record;
}

void check_matrix(const Tensor& tensor, const char* name, const char* shape) {
  DS_CHECK(tensor.dims() == 2, Code::kInvalidArgument, name, " has shape ", tensor.shape().text(),
           "; ", shape, " is needed");
}

void check_shape(const Tensor& tensor, const char* name, const Shape& shape) {
  DS_CHECK(tensor.shape() == shape, Code::kInvalidArgument, name, " has shape ",
           tensor.shape().text(), "; ", shape.text(), " is needed");
}

// Optional float32 numbers of one shape.
void check_maybe(const Tensor& tensor, const char* name, const Shape& shape) {
  if (!tensor) return;
  DS_CHECK(tensor.dtype() == DType::kFloat32, Code::kUnsupported, name, " is ",
           dtype_name(tensor.dtype()), "; float32 is needed");
  check_shape(tensor, name, shape);
}

// Numbers in a tensor that something is found by: from `low` to below `end`.
void check_numbers(const Tensor& tensor, const char* name, int64_t low, int64_t end) {
  const int32_t* const numbers = tensor.data<int32_t>();
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    DS_CHECK(numbers[i] >= low && numbers[i] < end, Code::kInvalidArgument, name, "[", i, "] is ",
             numbers[i], "; ", low, " to ", end - 1, " are possible");
  }
}

// Routes to rows that lie in one tensor, as those of one expert.
ops::Routes one_expert(const HostCall& call, Shape routes, int64_t rows) {
  ops::Routes out;
  out.chosen = call.empty(DType::kInt32, routes);
  out.offsets = call.empty(DType::kInt32, {2});
  out.offsets.data<int32_t>()[0] = 0;
  out.offsets.data<int32_t>()[1] = static_cast<int32_t>(rows);
  out.routes = call.empty(DType::kInt32, {routes.elements()});
  return out;
}

ops::Routes routes_of(const HostCall& call, const Tensor& rows, const Tensor& places) {
  check_matrix(rows, "rows", "[rows, width]");
  check_matrix(places, "places", "[tokens, choices]");
  DS_CHECK(rows.size(0) <= kMostRoutes, Code::kInvalidArgument, "rows has ", rows.size(0),
           " rows; at most 2^31 - 1 are possible");
  check_numbers(places, "places", -1, rows.size(0));
  ops::Routes out = one_expert(call, places.shape(), rows.size(0));
  out.rows = places;
  std::transform(places.data<int32_t>(), places.data<int32_t>() + places.elements(),
                 out.chosen.data<int32_t>(), [](int32_t row) { return row < 0 ? -1 : 0; });
  return out;
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_experts_gate(const ds_tensor* logits, const ds_tensor* bias, const char* options_json,
                          ds_tensor** out_chosen, ds_tensor** out_weights, ds_tensor** out_counts,
                          ds_tensor** out_losses) {
  return guard(__func__, [&] {
    const auto object = enter(logits, "logits", Entry::kShared);
    const MaybeTensor added(bias, "bias");
    ds_tensor*& chosen_out = out_param(out_chosen, "out_chosen");
    ds_tensor*& weights_out = out_param(out_weights, "out_weights");
    ds_tensor*& counts_out = out_param(out_counts, "out_counts");
    ds_tensor*& losses_out = out_param(out_losses, "out_losses");
    const Tensor& x = logits_tensor(*object);
    const int64_t experts = x.size(1);
    const GateOptions options(options_json, experts);
    check_maybe(*added, "bias", {experts});
    const HostCall call;
    nn::GateForward gate = open_gate(call, options, x);
    // Each token has numbers of its own.
    const nn::GateDraws draws{[&](nn::GateDraws::Kind kind) { return options.stream(kind); },
                              x.size(0)};
    gate.choose(*added, draws);
    gate.count(Tensor());
    gate.sort();
    Tensor counts = call.empty(DType::kInt64, {3, experts});
    Tensor losses = call.empty(DType::kFloat32, {2});
    set_losses(gate.sums(), counts, losses);
    gate.limit(draws);
    set_row(counts, 1, gate.loads());
    Tensor weights = call.empty(DType::kFloat32, gate.routes.chosen.shape());
    gate.weigh(weights);
    ReservedTensor first, second, third, fourth;
    chosen_out = first.give(gate.routes.chosen);
    weights_out = second.give(std::move(weights));
    counts_out = third.give(std::move(counts));
    losses_out = fourth.give(std::move(losses));
  });
}

ds_status ds_experts_gate_backward(const ds_tensor* logits, const ds_tensor* chosen,
                                   const ds_tensor* counts, const char* options_json,
                                   const ds_tensor* weights_gradient,
                                   const ds_tensor* losses_gradient,
                                   ds_tensor** out_logits_gradient) {
  return guard(__func__, [&] {
    const auto object = enter(logits, "logits", Entry::kShared);
    const auto choices = enter(chosen, "chosen", Entry::kShared);
    const auto loads = enter(counts, "counts", Entry::kShared);
    const MaybeTensor by_weights(weights_gradient, "weights_gradient");
    const MaybeTensor by_losses(losses_gradient, "losses_gradient");
    ds_tensor*& out = out_param(out_logits_gradient, "out_logits_gradient");
    const Tensor& x = logits_tensor(*object);
    const int64_t experts = x.size(1);
    const GateOptions options(options_json, experts);
    const Tensor& c = typed_tensor(*choices, "chosen", DType::kInt32);
    const Tensor& n = typed_tensor(*loads, "counts", DType::kInt64);
    check_shape(c, "chosen", {x.size(0), options.gate.rule.choices});
    check_numbers(c, "chosen", -1, experts);
    check_shape(n, "counts", {3, experts});
    check_maybe(*by_weights, "weights_gradient", c.shape());
    check_maybe(*by_losses, "losses_gradient", {2});
    const HostCall call;
    const nn::GateForward gate = open_gate(call, options, x);  // the scores again
    ops::GateGradients gradients;
    gradients.dweights = *by_weights;
    if (*by_losses && x.size(0) > 0) {
      const float* const by = (*by_losses).data<float>();
      nn::add_loss_gradients(call.ctx(), record_of(options, n, x.size(0)), 0, by[0], by[1],
                             gradients);
    }
    Tensor dx = call.empty(DType::kFloat32, x.shape());
    ops::gate_backward(call.ctx(), options.gate.rule, x, gate.scores, c, gradients, dx);
    out = publish_tensor(std::move(dx));
  });
}

ds_status ds_experts_sort(const ds_tensor* chosen, int64_t experts, ds_tensor** out_offsets,
                          ds_tensor** out_order, ds_tensor** out_places) {
  return guard(__func__, [&] {
    const auto object = enter(chosen, "chosen", Entry::kShared);
    ds_tensor*& offsets_out = out_param(out_offsets, "out_offsets");
    ds_tensor*& order_out = out_param(out_order, "out_order");
    ds_tensor*& places_out = out_param(out_places, "out_places");
    const Tensor& c = typed_tensor(*object, "chosen", DType::kInt32);
    check_matrix(c, "chosen", "[tokens, choices]");
    DS_CHECK(experts >= 1 && experts < INT32_MAX, Code::kInvalidArgument, "experts is ", experts,
             "; 1 to 2^31 - 2 are possible");
    const HostCall call;
    ops::Routes routes{c, call.empty(DType::kInt32, {experts + 1}),
                       call.empty(DType::kInt32, {c.elements()}),
                       call.empty(DType::kInt32, c.shape())};
    ops::sort_routes(call.ctx(), routes);
    ReservedTensor first, second, third;
    order_out = second.give(routes.routes.slice(0, 0, routes.all_rows()));
    places_out = third.give(std::move(routes.rows));
    offsets_out = first.give(std::move(routes.offsets));
  });
}

ds_status ds_experts_dispatch(const ds_tensor* tokens, const ds_tensor* order, int64_t choices,
                              const ds_tensor* weights, ds_tensor** out_rows) {
  return guard(__func__, [&] {
    const auto object = enter(tokens, "tokens", Entry::kShared);
    const auto sorted = enter(order, "order", Entry::kShared);
    const MaybeTensor factors(weights, "weights");
    ds_tensor*& out = out_param(out_rows, "out_rows");
    const Tensor& x = float_tensor(*object, "tokens");
    const Tensor& by_row = typed_tensor(*sorted, "order", DType::kInt32);
    check_matrix(x, "tokens", "[tokens, width]");
    DS_CHECK(by_row.dims() == 1, Code::kInvalidArgument, "order has shape ", by_row.shape().text(),
             "; [rows] is needed");
    DS_CHECK(choices >= 1 && x.size(0) <= kMostRoutes / choices, Code::kInvalidArgument,
             "choices is ", choices, " for ", x.size(0),
             " tokens; 1 or more, and at most 2^31 - 1 routes are possible");
    check_numbers(by_row, "order", 0, x.size(0) * choices);
    const Shape each{x.size(0), choices};
    check_maybe(*factors, "weights", each);
    const HostCall call;
    Tensor rows = call.empty(x.dtype(), {by_row.elements(), x.size(1)});
    ops::gather_rows(call.ctx(), ops::RowOrder{by_row, choices}, x, *factors, rows);
    out = publish_tensor(std::move(rows));
  });
}

ds_status ds_experts_combine(const ds_tensor* rows, const ds_tensor* places,
                             const ds_tensor* weights, ds_tensor** out_tokens) {
  return guard(__func__, [&] {
    const auto object = enter(rows, "rows", Entry::kShared);
    const auto found = enter(places, "places", Entry::kShared);
    const MaybeTensor factors(weights, "weights");
    ds_tensor*& out = out_param(out_tokens, "out_tokens");
    const Tensor& x = float_tensor(*object, "rows");
    const Tensor& at = typed_tensor(*found, "places", DType::kInt32);
    const HostCall call;
    const ops::Routes routes = routes_of(call, x, at);
    check_maybe(*factors, "weights", at.shape());
    Tensor y = call.empty(x.dtype(), {at.size(0), x.size(1)});
    ops::sum_rows(call.ctx(), routes, {&x, 1}, *factors, y);
    out = publish_tensor(std::move(y));
  });
}

ds_status ds_experts_weights_backward(const ds_tensor* rows, const ds_tensor* places,
                                      const ds_tensor* gradient, ds_tensor** out_weights_gradient) {
  return guard(__func__, [&] {
    const auto object = enter(rows, "rows", Entry::kShared);
    const auto found = enter(places, "places", Entry::kShared);
    const auto given = enter(gradient, "gradient", Entry::kShared);
    ds_tensor*& out = out_param(out_weights_gradient, "out_weights_gradient");
    const Tensor& x = float_tensor(*object, "rows");
    const Tensor& at = typed_tensor(*found, "places", DType::kInt32);
    const HostCall call;
    const ops::Routes routes = routes_of(call, x, at);
    const Tensor& dy = typed_tensor(*given, "gradient", x.dtype());
    check_shape(dy, "gradient", {at.size(0), x.size(1)});
    Tensor dots = call.empty(DType::kFloat32, at.shape());
    ops::route_dots(call.ctx(), routes, {&x, 1}, dy, dots);
    out = publish_tensor(std::move(dots));
  });
}
