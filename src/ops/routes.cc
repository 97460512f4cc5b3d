// Checks and launch of what moves rows between tokens and experts.
#include "ops/routes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/checks.h"
#include "ops/linear_checks.h"
#include "tensor/transfer.h"

namespace ds::ops {
namespace {

void check_routes(const Op& op, const Routes& routes) {
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

// The rows of experts for kernels, with what holds their addresses.
class RowsOfExperts {
 public:
  RowsOfExperts(const Op& op, const Routes& routes, std::span<const Tensor> experts,
                const Tensor& like) {
    DS_CHECK(std::ssize(experts) == routes.experts(), Code::kInvalidArgument, op, ": rows of ",
             experts.size(), " experts for routes to ", routes.experts());
    bases_.assign(experts.size(), nullptr);
    bool aligned = true;
    for (size_t e = 0; e < experts.size(); ++e) {
      if (!experts[e]) continue;
      const auto expert = static_cast<int64_t>(e);
      check_dense(experts[e], op, "the rows of an expert", like.dtype(),
                  {routes.begin(expert + 1) - routes.begin(expert), like.size(1)});
      bases_[e] = experts[e].raw();
      aligned = aligned && reinterpret_cast<uintptr_t>(bases_[e]) % 16 == 0;
    }
    rows_ = {float_type(like), like.size(1), routes.offsets.data<int32_t>(), bases_.data(),
             aligned};
    if (op.ctx.device->kind() == DeviceKind::kCpu) return;
    // Addresses go to the GPU.
    addresses_ = op.ctx.workspace(DType::kInt64, {std::ssize(bases_)});
    copy_from_host(bases_.data(), addresses_);
    rows_.bases = reinterpret_cast<const void* const*>(addresses_.data<int64_t>());
  }
  const kernels::ExpertRows& operator*() const { return rows_; }

 private:
  std::vector<const void*> bases_;
  Tensor addresses_;
  kernels::ExpertRows rows_;
};

bool on_cpu(const OpContext& ctx) { return ctx.device->kind() == DeviceKind::kCpu; }

// Memory of the host for the offsets of a GPU's routes.
Tensor host_offsets(const OpContext& ctx, const Routes& routes) {
  return Tensor::empty(host_memory_of(ctx.device), DType::kInt32, routes.offsets.shape(),
                       MemoryTag::kActivations);
}

void sort(const OpContext& ctx, const Routes& routes, bool by_choice) {
  const auto scratch_of = [&](auto& on) {
    return kernels::route_sort_scratch(routes.chosen.elements(), routes.experts(), on);
  };
  run(ctx, scratch_of, [&](float* scratch, auto& on) {
    kernels::sort_routes({.tokens = routes.tokens(),
                          .experts = routes.experts(),
                          .choices = routes.choices(),
                          .chosen = routes.chosen.data<int32_t>(),
                          .by_choice = by_choice,
                          .offsets = routes.offsets.data<int32_t>(),
                          .routes = routes.routes.data<int32_t>(),
                          .rows = routes.rows.data<int32_t>(),
                          .scratch = reinterpret_cast<int32_t*>(scratch)},
                         on);
  });
}

}  // namespace

void sort_routes(const OpContext& ctx, Routes& routes, bool by_choice) {
  const Op op{ctx, "sort_routes"};
  check_routes(op, routes);
  if (on_cpu(ctx)) {
    const int32_t* const chosen = routes.chosen.data<int32_t>();
    for (int64_t i = 0; i < routes.chosen.elements(); ++i) {
      DS_CHECK(chosen[i] >= -1 && chosen[i] < routes.experts(), Code::kInvalidArgument, op,
               ": chosen[", i, "] is ", chosen[i], "; -1 to ", routes.experts() - 1,
               " are possible");
    }
  }
  sort(ctx, routes, by_choice);
  if (on_cpu(ctx)) return;
  routes.begins = host_offsets(ctx, routes);
  Stream& stream = ctx.device->default_stream();
  ctx.device->copy(routes.begins.raw(), routes.offsets.raw(), routes.offsets.bytes(), stream);
  stream.synchronize();
}

void all_routes(const OpContext& ctx, Routes& routes) {
  const Op op{ctx, "all_routes"};
  check_routes(op, routes);
  DS_CHECK(routes.choices() == routes.experts(), Code::kInvalidArgument, op, ": ", routes.choices(),
           " choices of ", routes.experts(), " experts are not all");
  run(ctx, [&](auto& on) {
    kernels::all_routes({.tokens = routes.tokens(),
                         .experts = routes.experts(),
                         .chosen = routes.chosen.data<int32_t>(),
                         .offsets = routes.offsets.data<int32_t>(),
                         .routes = routes.routes.data<int32_t>(),
                         .rows = routes.rows.data<int32_t>()},
                        on);
  });
  if (on_cpu(ctx)) return;
  routes.begins = host_offsets(ctx, routes);
  for (int64_t e = 0; e <= routes.experts(); ++e) {
    routes.begins.data<int32_t>()[e] = static_cast<int32_t>(e * routes.tokens());
  }
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
  run(ctx, [&](auto& on) {
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
                          on);
  });
  sort(ctx, routes, false);
  if (on_cpu(ctx)) return;
  // How many each expert keeps follows from how many it had.
  const Tensor before = std::exchange(routes.begins, host_offsets(ctx, routes));
  const int32_t* const from = before.data<int32_t>();
  int32_t* const to = routes.begins.data<int32_t>();
  to[0] = 0;
  for (int64_t e = 0; e < routes.experts(); ++e) {
    const int64_t kept = std::min<int64_t>(capacity, from[e + 1] - from[e]);
    to[e + 1] = to[e] + static_cast<int32_t>(kept);
  }
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
  check_dense_float(x, op, "x");
  check_dense(from.order, op, "order", DType::kInt32);
  check_dense(rows, op, "rows", x.dtype(), {from.order.elements(), x.size(-1)});
  const Shape routes{x.size(0), from.choices};
  if (weights) check_dense(weights, op, "weights", DType::kFloat32, routes);
  run(ctx, [&](auto& on) {
    kernels::gather_rows({.type = float_type(x),
                          .width = x.size(-1),
                          .rows = from.order.elements(),
                          .choices = from.choices,
                          .x = x.raw(),
                          .routes = from.order.data<int32_t>(),
                          .weights = weights ? weights.data<float>() : nullptr,
                          .out = rows.raw()},
                         on);
  });
}

void sum_rows(const OpContext& ctx, const Routes& routes, std::span<const Tensor> experts,
              const Tensor& weights, Tensor& y) {
  const Op op{ctx, "sum_rows"};
  check_routes(op, routes);
  check_tokens(op, routes, y, "y");
  const RowsOfExperts from(op, routes, experts, y);
  const float* const weight = check_weights(op, routes, weights);
  run(ctx, [&](auto& on) {
    kernels::sum_rows({.from = *from,
                       .tokens = routes.tokens(),
                       .choices = routes.choices(),
                       .chosen = routes.chosen.data<int32_t>(),
                       .rows = routes.rows.data<int32_t>(),
                       .weights = weight,
                       .y = y.raw()},
                      on);
  });
}

void route_dots(const OpContext& ctx, const Routes& routes, std::span<const Tensor> experts,
                const Tensor& x, Tensor& dots) {
  const Op op{ctx, "route_dots"};
  check_routes(op, routes);
  check_tokens(op, routes, x, "x");
  check_dense(dots, op, "dots", DType::kFloat32, routes.chosen.shape());
  const RowsOfExperts from(op, routes, experts, x);
  run(ctx, [&](auto& on) {
    kernels::route_dots({.from = *from,
                         .tokens = routes.tokens(),
                         .choices = routes.choices(),
                         .chosen = routes.chosen.data<int32_t>(),
                         .rows = routes.rows.data<int32_t>(),
                         .x = x.raw(),
                         .dots = dots.data<float>()},
                        on);
  });
}

}  // namespace ds::ops
