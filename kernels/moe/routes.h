// Routes of a mixture of experts: a route is one of the choices of one token, number token *
// choices + choice. Which of them an expert takes, in which row of the experts' input each lies,
// and rows on their way from tokens to experts and back.
#pragma once

#include <cstdint>

#include "base/thread_pool_fwd.h"
#include "kernels/cuda/gpu_stream.h"
#include "kernels/float_type.h"

namespace ds::kernels {

// Routes sorted by expert. A row is a route that an expert takes; rows of an expert are
// consecutive, from offsets[expert] on, and the order of equal experts is kept.
struct RouteSort {
  int64_t tokens = 0, experts = 0, choices = 1;
  const int32_t* chosen = nullptr;  // [tokens, choices]; -1: none
  // The order before sorting: all first choices, then all second ones, and so on; otherwise token
  // by token.
  bool by_choice = false;
  int32_t* offsets = nullptr;  // [experts + 1]
  int32_t* routes = nullptr;   // [tokens * choices]: by row, as many as offsets[experts]
  int32_t* rows = nullptr;     // [tokens, choices]: by route, -1 for none; or null
  int32_t* scratch = nullptr;  // as many as route_sort_scratch says
};
void sort_routes(const RouteSort& call, ThreadPool& pool);
void sort_routes(const RouteSort& call, const GpuStream& on);

// A GPU counts the routes of each expert in so many routes apart.
inline constexpr int64_t kRouteTile = 256;
inline int64_t route_tiles(int64_t routes) { return (routes + kRouteTile - 1) / kRouteTile; }
inline int64_t route_sort_scratch(int64_t, int64_t, const ThreadPool&) { return 0; }
inline int64_t route_sort_scratch(int64_t routes, int64_t experts, const GpuStream&) {
  return route_tiles(routes) * experts;
}

// Every token goes to each of the experts, so that there are as many choices: the same arrays,
// sorted.
struct AllRoutes {
  int64_t tokens = 0, experts = 0;
  int32_t* chosen = nullptr;
  int32_t* offsets = nullptr;
  int32_t* routes = nullptr;
  int32_t* rows = nullptr;
};
void all_routes(const AllRoutes& call, ThreadPool& pool);
void all_routes(const AllRoutes& call, const GpuStream& on);

// Who keeps a place when more tokens choose an expert than it has room for.
enum class RoutePriority {
  kOrder,  // the first in the order of the sort
  // The tokens with the largest keys; of equal ones the first. The sort was not by_choice.
  kScore,
};
// Drops what is beyond an expert's capacity.
struct RouteLimit {
  int64_t tokens = 0, experts = 0, choices = 1;
  int64_t capacity = 0;
  RoutePriority priority = RoutePriority::kOrder;
  const float* key = nullptr;        // [tokens, experts], for kScore
  const int32_t* offsets = nullptr;  // of sort_routes
  int32_t* routes = nullptr;         // likewise; what is left of them is to be sorted again
  int32_t* chosen = nullptr;         // dropped routes become -1
  // [tokens, choices], or null: the place of a route among those that its expert keeps, -1 where it
  // was dropped. With kScore places are in the order of tokens.
  int32_t* places = nullptr;
};
void limit_routes(const RouteLimit& call, ThreadPool& pool);
void limit_routes(const RouteLimit& call, const GpuStream& on);

// Tokens an expert takes at most: factor * tokens / experts, rounded up, but `least`. As in
// DeepSpeed the quotient is rounded to fp32 before it is rounded up.
int64_t expert_capacity(int64_t tokens, int64_t experts, double factor, int64_t least);

// Rows of several tensors: row r of expert e lies at bases[e] + (r - offsets[e]) * width.
struct ExpertRows {
  FloatType type = FloatType::kFloat32;
  int64_t width = 0;
  const int32_t* offsets = nullptr;
  const void* const* bases = nullptr;  // null: the expert's rows are zeros
  bool aligned = false;                // all at multiples of 16 bytes; GPUs ask
};

// rows[r] = x[token of r], times the weight of its route where there are weights: [rows, width].
struct GatherRows {
  FloatType type = FloatType::kFloat32;
  int64_t width = 0, rows = 0, choices = 1;
  const void* x = nullptr;  // [tokens, width]
  const int32_t* routes = nullptr;
  const float* weights = nullptr;  // [tokens, choices] or null
  void* out = nullptr;
};
void gather_rows(const GatherRows& call, ThreadPool& pool);
void gather_rows(const GatherRows& call, const GpuStream& on);

// y[token] = the sum over its routes of weight * row, in fp32 and rounded once; routes in their
// order.
struct SumRows {
  ExpertRows from;
  int64_t tokens = 0, choices = 1;
  const int32_t* chosen = nullptr;  // [tokens, choices]
  const int32_t* rows = nullptr;    // [tokens, choices]
  const float* weights = nullptr;   // [tokens, choices]; null: 1
  void* y = nullptr;                // [tokens, width]
};
void sum_rows(const SumRows& call, ThreadPool& pool);
void sum_rows(const SumRows& call, const GpuStream& on);

// dots[token, choice] = the product of the route's row with x[token]; 0 where there is no route.
struct RouteDots {
  ExpertRows from;
  int64_t tokens = 0, choices = 1;
  const int32_t* chosen = nullptr;
  const int32_t* rows = nullptr;
  const void* x = nullptr;  // [tokens, width] of the rows' type
  float* dots = nullptr;
};
void route_dots(const RouteDots& call, ThreadPool& pool);
void route_dots(const RouteDots& call, const GpuStream& on);

}  // namespace ds::kernels
