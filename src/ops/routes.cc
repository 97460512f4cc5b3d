// Checks and launch of what moves rows between tokens and experts.
#include "ops/routes.h"

#include <vector>

#include "ops/checks.h"
#include "ops/linear_checks.h"

namespace ds::ops {
namespace {

void check_on_cpu(const Op& op) {
  DS_CHECK(op.ctx.device->kind() == DeviceKind::kCpu, Code::kUnsupported, op,
           " runs on the CPU, not on ", op.ctx.device->describe());
}

void check_routes(const Op& op, const Routes& routes) {
  check_on_cpu(op);
  check_dense(routes.chosen, op, "chosen", DType::kInt32);
  DS_CHECK(routes.chosen.dims() == 2 && routes.chosen.elements() <= INT32_MAX,
           Code::kInvalidArgument, op, ": chosen has shape ", routes.chosen.shape().text(),
           "; [tokens, choices] of at most 2^31 - 1 routes is needed");
  check_dense(routes.offsets, op, "offsets", DType::kInt32);
  DS_CHECK(routes.offsets.dims() == 1 && routes.experts() >= 1, Code::kInvalidArgument, op,
           ": offsets has shape ", routes.offsets.shape().text(), "; [experts + 1] is needed");
  check_elements(routes.routes, op, "routes", DType::kInt32, routes.chosen.elements());
  check_dense(routes.rows, op, "rows", DType::kInt32, routes.chosen.shape());
}

void check_tokens(const Op& op, const Routes& routes, const Tensor& x, const char* name) {
  check_dense_float(x, op, name);
  DS_CHECK(x.dims() == 2 && x.size(0) == routes.tokens(), Code::kInvalidArgument, op, ": ", name,
           " has shape ", x.shape().text(), "; [", routes.tokens(), ", width] is needed");
}

const float* check_weights(const Op& op, const Routes& routes, const Tensor& weights) {
  if (!weights) return nullptr;
  check_dense(weights, op, "weights", DType::kFloat32, routes.chosen.shape());
  return weights.data<float>();
}

// Fills `bases`, which the result points to.
kernels::ExpertRows expert_rows(const Op& op, const Routes& routes, std::span<const Tensor> experts,
                                const Tensor& like, std::vector<const void*>& bases) {
  DS_CHECK(std::ssize(experts) == routes.experts(), Code::kInvalidArgument, op, ": rows of ",
           experts.size(), " experts for routes to ", routes.experts());
  bases.assign(experts.size(), nullptr);
  for (size_t e = 0; e < experts.size(); ++e) {
    if (!experts[e]) continue;
    const auto expert = static_cast<int64_t>(e);
    check_dense(experts[e], op, "the rows of an expert", like.dtype(),
                {routes.begin(expert + 1) - routes.begin(expert), like.size(1)});
    bases[e] = experts[e].raw();
  }
  return {float_type(like), like.size(1), routes.offsets.data<int32_t>(), bases.data()};
}

void sort(const Routes& routes, bool by_choice) {
  kernels::sort_routes({.tokens = routes.tokens(),
                        .experts = routes.experts(),
                        .choices = routes.choices(),
                        .chosen = routes.chosen.data<int32_t>(),
                        .by_choice = by_choice,
                        .offsets = routes.offsets.data<int32_t>(),
                        .routes = routes.routes.data<int32_t>(),
                        .rows = routes.rows.data<int32_t>()});
}

}  // namespace

void sort_routes(const OpContext& ctx, Routes& routes, bool by_choice) {
  const Op op{ctx, "sort_routes"};
  check_routes(op, routes);
  const int32_t* const chosen = routes.chosen.data<int32_t>();
  for (int64_t i = 0; i < routes.chosen.elements(); ++i) {
    DS_CHECK(chosen[i] >= -1 && chosen[i] < routes.experts(), Code::kInvalidArgument, op,
             ": chosen[", i, "] is ", chosen[i], "; -1 to ", routes.experts() - 1, " are possible");
  }
  sort(routes, by_choice);
}

void limit_routes(const OpContext& ctx, Routes& routes, int64_t capacity, RoutePriority priority,
                  const Tensor& key, Tensor& places) {
  const Op op{ctx, "limit_routes"};
  check_routes(op, routes);
  DS_CHECK(capacity >= 0, Code::kInvalidArgument, op, ": an expert cannot take ", capacity,
           " tokens");
  if (priority == RoutePriority::kScore) {
    check_dense(key, op, "key", DType::kFloat32, {routes.tokens(), routes.experts()});
  }
  if (places) check_dense(places, op, "places", DType::kInt32, routes.chosen.shape());
  kernels::limit_routes({.tokens = routes.tokens(),
                         .experts = routes.experts(),
                         .choices = routes.choices(),
                         .capacity = capacity,
                         .priority = priority,
                         .key = key ? key.data<float>() : nullptr,
                         .offsets = routes.offsets.data<int32_t>(),
                         .routes = routes.routes.data<int32_t>(),
                         .chosen = routes.chosen.data<int32_t>(),
                         .places = places ? places.data<int32_t>() : nullptr},
                        *ctx.pool);
  sort(routes, false);
}

void gather_rows(const OpContext& ctx, const Routes& routes, const Tensor& x, const Tensor& weights,
                 Tensor& rows) {
  const Op op{ctx, "gather_rows"};
  check_routes(op, routes);
  check_tokens(op, routes, x, "x");
  gather_rows(ctx, RowOrder{routes.routes.slice(0, 0, routes.all_rows()), routes.choices()}, x,
              weights, rows);
}

void gather_rows(const OpContext& ctx, const RowOrder& from, const Tensor& x, const Tensor& weights,
                 Tensor& rows) {
  const Op op{ctx, "gather_rows"};
  check_on_cpu(op);
  check_dense_float(x, op, "x");
  check_dense(from.order, op, "order", DType::kInt32);
  check_dense(rows, op, "rows", x.dtype(), {from.order.elements(), x.size(-1)});
  const Shape routes{x.size(0), from.choices};
  if (weights) check_dense(weights, op, "weights", DType::kFloat32, routes);
  kernels::gather_rows({.type = float_type(x),
                        .width = x.size(-1),
                        .rows = from.order.elements(),
                        .choices = from.choices,
                        .x = x.raw(),
                        .routes = from.order.data<int32_t>(),
                        .weights = weights ? weights.data<float>() : nullptr,
                        .out = rows.raw()},
                       *ctx.pool);
}

void sum_rows(const OpContext& ctx, const Routes& routes, std::span<const Tensor> experts,
              const Tensor& weights, Tensor& y) {
  const Op op{ctx, "sum_rows"};
  check_routes(op, routes);
  check_tokens(op, routes, y, "y");
  std::vector<const void*> bases;
  kernels::sum_rows({.from = expert_rows(op, routes, experts, y, bases),
                     .tokens = routes.tokens(),
                     .choices = routes.choices(),
                     .chosen = routes.chosen.data<int32_t>(),
                     .rows = routes.rows.data<int32_t>(),
                     .weights = check_weights(op, routes, weights),
                     .y = y.raw()},
                    *ctx.pool);
}

void route_dots(const OpContext& ctx, const Routes& routes, std::span<const Tensor> experts,
                const Tensor& x, Tensor& dots) {
  const Op op{ctx, "route_dots"};
  check_routes(op, routes);
  check_tokens(op, routes, x, "x");
  check_dense(dots, op, "dots", DType::kFloat32, routes.chosen.shape());
  std::vector<const void*> bases;
  kernels::route_dots({.from = expert_rows(op, routes, experts, x, bases),
                       .tokens = routes.tokens(),
                       .choices = routes.choices(),
                       .chosen = routes.chosen.data<int32_t>(),
                       .rows = routes.rows.data<int32_t>(),
                       .x = x.raw(),
                       .dots = dots.data<float>()},
                      *ctx.pool);
}

}  // namespace ds::ops
