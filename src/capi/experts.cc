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
#include "nn/router_record.h"
#include "ops/elementwise.h"
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

// The options document of a gate.
struct GateOptions {
  ops::GateRule rule;
  double capacity_factor = 0;  // 0: experts take all that come
  int64_t min_capacity = 4;
  std::string drop;
  bool sample_first = false, sample_others = false;
  RandomStream random;
  int64_t first_token = 0;
  int64_t balance_choices = 1;

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
  rule.scores = sigmoid ? ops::GateScores::kSigmoid : ops::GateScores::kSoftmax;
  rule.choices = given.integer("top_k", 1, 1, INT32_MAX);
  rule.normalise = given.flag("route_norm", false);
  rule.floor = sigmoid ? 1e-20F : FLT_EPSILON;
  rule.scale = static_cast<float>(given.number("route_scale", 1, -FLT_MAX, FLT_MAX));
  rule.groups = given.integer("num_expert_groups", 1, 1, INT32_MAX);
  rule.kept_groups = given.integer("num_limited_groups", rule.groups, 1, INT32_MAX);
  rule.group_best = one_of(given, "group_score", "max", {"max", "top2"}) == "max" ? 1 : 2;
  ops::check_gate_rule(rule, experts);
  capacity_factor = given.number("capacity_factor", 0, 0, kMostFactor);
  if (given.has("capacity_factor") && capacity_factor == 0) {
    given.refuse("capacity_factor", "must be above 0; without it experts take all that come");
  }
  min_capacity = given.integer("min_capacity", 4, 0, INT32_MAX);
  drop = one_of(given, "drop_policy", "probs", {"probs", "position", "first_choices", "random"});
  const std::string sample = one_of(given, "sample", "none", {"none", "first", "others", "all"});
  sample_first = sample == "first" || sample == "all";
  sample_others = sample == "others" || sample == "all";
  random.seed = static_cast<uint64_t>(given.integer("seed", 0, 0, INT64_MAX));
  first_token = given.integer("first_token", 0, 0, UINT32_MAX);
  balance_choices = given.integer("balance_choices", rule.choices, 1, rule.choices);
}

const Tensor& logits_tensor(const TensorObject& object) {
  const Tensor& logits = typed_tensor(object, "logits", DType::kFloat32);
  DS_CHECK(logits.dims() == 2 && logits.size(1) >= 1, Code::kInvalidArgument, "logits has shape ",
           logits.shape().text(), "; [tokens, experts] with at least one expert is needed");
  return logits;
}

// One forward pass of a gate.
class GateForward {
 public:
  GateForward(const HostCall& call, const GateOptions& options, const Tensor& logits)
      : call_(call), options_(options), logits_(logits) {
    const int64_t tokens = logits.size(0), choices = options.rule.choices;
    DS_CHECK(tokens <= kMostRoutes / choices, Code::kInvalidArgument, tokens, " tokens with ",
             choices, " choices each are more than 2^31 - 1 routes");
    scores = call.empty(DType::kFloat32, logits.shape());
    ops::gate_scores(call.ctx(), options.rule.scores, logits, scores);
    const auto ints = [&](const Shape& shape) { return call.empty(DType::kInt32, shape); };
    routes = {ints({tokens, choices}), ints({logits.size(1) + 1}), ints({tokens * choices}),
              ints({tokens, choices})};
  }

  void choose(const Tensor& bias) {
    Tensor first = scores, others;
    // What is drawn is drawn by logits, and compared by them with what is not.
    if (options_.sample_first) first = drawn(0);
    if (options_.sample_others) others = drawn(1);
    if (!others && first.raw() != scores.raw()) others = scores;
    ops::choose_experts(call_.ctx(), options_.rule, first, others, bias, Tensor(), routes.chosen);
    ops::sort_routes(call_.ctx(), routes, options_.drop == "first_choices");
  }

  // Lets experts drop what they have no room for.
  void limit() {
    if (options_.capacity_factor == 0) return;
    const double factor = options_.capacity_factor * static_cast<double>(options_.rule.choices);
    const int64_t capacity =
        ops::expert_capacity(routes.tokens(), routes.experts(), factor, options_.min_capacity);
    Tensor key, places;
    if (options_.drop == "probs") key = scores;
    if (options_.drop == "random") {
      key = call_.empty(DType::kFloat32, scores.shape());
      ops::gate_noise(call_.ctx(), {ops::GateNoise::kUniform, options_.stream(2)}, Tensor(), key);
    }
    ops::limit_routes(call_.ctx(), routes, capacity,
                      key ? ops::RoutePriority::kScore : ops::RoutePriority::kOrder, key, places);
  }

  // Loads go to row `row` of counts.
  void count(Tensor& counts, int64_t row) const {
    int64_t* const out = counts.data<int64_t>() + row * routes.experts();
    for (int64_t e = 0; e < routes.experts(); ++e) out[e] = routes.begin(e + 1) - routes.begin(e);
  }

  Tensor scores;
  ops::Routes routes;

 private:
  // Logits to which random numbers are added, so that the largest is drawn from their softmax.
  Tensor drawn(uint32_t kind) const {
    Tensor out = call_.empty(DType::kFloat32, logits_.shape());
    ops::gate_noise(call_.ctx(), {ops::GateNoise::kGumbel, options_.stream(kind)}, Tensor(), out);
    ops::add(call_.ctx(), out, logits_, out);
    return out;
  }

  const HostCall& call_;
  const GateOptions& options_;
  const Tensor& logits_;
};

// The losses of one gate, as those of a model with one layer of experts.
nn::RouterRecord::Layer layer_of(const GateOptions& options, int64_t tokens) {
  nn::RouterRecord::Layer layer;
  layer.losses = {.balance = 1,
                  .pooled = false,
                  .counted_choices = options.balance_choices,
                  .per_choice = true,
                  .z = 1};
  layer.tokens = static_cast<double>(tokens);
  return layer;
}

// Counts what the losses count, into the last row of `counts`.
void set_losses(const HostCall& call, const GateOptions& options, const GateForward& gate,
                const Tensor& logits, Tensor& counts, Tensor& losses) {
  const int64_t experts = logits.size(1);
  Tensor probabilities = call.empty(DType::kFloat64, {experts});
  Tensor counted = call.empty(DType::kFloat64, {experts});
  ops::gate_sums(call.ctx(), options.rule.scores, gate.scores,
                 {.chosen = gate.routes.chosen, .choices = options.balance_choices}, probabilities,
                 counted);
  const double* const routes = counted.data<double>();
  std::transform(routes, routes + experts, counts.data<int64_t>() + 2 * experts,
                 [](double n) { return static_cast<int64_t>(n); });
  nn::RouterRecord::Layer layer = layer_of(options, logits.size(0));
  layer.probabilities.assign(probabilities.data<double>(), probabilities.data<double>() + experts);
  layer.routes.assign(routes, routes + experts);
  layer.z_sum = ops::gate_z_sum(call.ctx(), logits, Tensor());
  nn::RouterRecord record;
  record.set(0, std::move(layer));
  losses.data<float>()[0] = static_cast<float>(record.balance_loss());
  losses.data<float>()[1] = static_cast<float>(record.z_loss());
}

// The gradient of the losses by what the gate's backward takes them by.
void add_loss_gradients(const HostCall& call, const GateOptions& options, const Tensor& logits,
                        const Tensor& counts, const Tensor& by_losses,
                        ops::GateGradients& gradients) {
  const int64_t experts = logits.size(1), tokens = logits.size(0);
  if (!by_losses || tokens == 0) return;
  const float balance = by_losses.data<float>()[0], z = by_losses.data<float>()[1];
  gradients.z = static_cast<float>(double{z} / static_cast<double>(tokens));
  if (balance == 0) return;
  nn::RouterRecord::Layer layer = layer_of(options, tokens);
  const int64_t* const counted = counts.data<int64_t>() + 2 * experts;
  layer.routes.assign(counted, counted + experts);
  nn::RouterRecord record;
  record.set(0, std::move(layer));
  const std::vector<float> each = record.balance_gradient(0);
  gradients.balance = call.empty(DType::kFloat32, {experts});
  std::ranges::transform(each, gradients.balance.data<float>(),
                         [&](float g) { return g * balance; });
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
    GateForward gate(call, options, x);
    gate.choose(*added);
    Tensor counts = call.empty(DType::kInt64, {3, experts});
    Tensor losses = call.empty(DType::kFloat32, {2});
    gate.count(counts, 0);
    set_losses(call, options, gate, x, counts, losses);
    gate.limit();
    gate.count(counts, 1);
    Tensor weights = call.empty(DType::kFloat32, gate.routes.chosen.shape());
    ops::route_weights(call.ctx(), options.rule, gate.scores, gate.routes.chosen, weights);
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
    check_shape(c, "chosen", {x.size(0), options.rule.choices});
    check_numbers(c, "chosen", -1, experts);
    check_shape(n, "counts", {3, experts});
    check_maybe(*by_weights, "weights_gradient", c.shape());
    check_maybe(*by_losses, "losses_gradient", {2});
    const HostCall call;
    const GateForward gate(call, options, x);  // the scores again
    ops::GateGradients gradients;
    gradients.dweights = *by_weights;
    add_loss_gradients(call, options, x, n, *by_losses, gradients);
    Tensor dx = call.empty(DType::kFloat32, x.shape());
    ops::gate_backward(call.ctx(), options.rule, x, gate.scores, c, gradients, dx);
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
