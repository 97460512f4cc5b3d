// Rows between tokens and the experts that they chose.
#pragma once

#include <span>

#include "kernels/moe/routes.h"
#include "ops/context.h"

namespace ds::ops {

using kernels::expert_capacity;
using kernels::RoutePriority;

// Routes of tokens to experts, all int32: a route is number token * choices + choice, and rows are
// routes sorted by expert.
struct Routes {
  Tensor chosen;   // [tokens, choices]: the expert, -1 for none
  Tensor offsets;  // [experts + 1]: where the rows of each expert begin
  Tensor routes;   // [tokens * choices]: by row
  Tensor rows;     // [tokens, choices]: by route, -1 for none
  // The offsets in host memory, where those above are not: left by whoever sorts.
  Tensor begins = {};

  int64_t tokens() const { return chosen.size(0); }
  int64_t choices() const { return chosen.size(1); }
  int64_t experts() const { return offsets.elements() - 1; }
  int64_t begin(int64_t expert) const {
    return (begins ? begins : offsets).data<int32_t>()[expert];
  }
  int64_t all_rows() const { return begin(experts()); }
};

// Fills offsets, routes and rows from `chosen`; `by_choice`: first choices come before second ones.
// On a GPU the host waits for the offsets.
void sort_routes(const OpContext& ctx, Routes& routes, bool by_choice = false);

// Routes of every token to each of as many experts as it has choices, in this order.
void all_routes(const OpContext& ctx, Routes& routes);

// Drops of sorted routes what is beyond the capacity of an expert, and sorts again; nobody waits.
// `key` fp32 [tokens, experts]: for kScore, of routes that were not sorted by_choice. `places`
// (int32 [tokens, choices], may be empty): see RouteLimit.
void limit_routes(const OpContext& ctx, Routes& routes, int64_t capacity, RoutePriority priority,
                  const Tensor& key, Tensor& places);

// rows [all_rows, width] = the rows of x [tokens, width], times `weights` fp32 [tokens, choices]
// where there are any.
void gather_rows(const OpContext& ctx, const Routes& routes, const Tensor& x, const Tensor& weights,
                 Tensor& rows);

// The same for rows of given routes: order int32 [rows], numbers token * choices + choice that the
// caller has checked; weights fp32 [tokens, choices].
struct RowOrder {
  Tensor order;
  int64_t choices = 1;
};
void gather_rows(const OpContext& ctx, const RowOrder& from, const Tensor& x, const Tensor& weights,
                 Tensor& rows);

// y [tokens, width] = the sum over each token's routes of weight (empty: 1) times row; `experts`
// are the rows of each expert [n, width], or empty where they are all 0.
void sum_rows(const OpContext& ctx, const Routes& routes, std::span<const Tensor> experts,
              const Tensor& weights, Tensor& y);

// dots [tokens, choices] fp32: the products of each route's row with the token's row of x.
void route_dots(const OpContext& ctx, const Routes& routes, std::span<const Tensor> experts,
                const Tensor& x, Tensor& dots);

}  // namespace ds::ops
