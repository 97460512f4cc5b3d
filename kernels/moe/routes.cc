// Which routes experts take, and in which rows. Counting sorts over a few numbers per token, in one
// thread; what experts drop is decided for each of them apart.
#include "kernels/moe/routes.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"

namespace ds::kernels {
namespace {

// Calls visit(route) in the order before sorting.
template <class Visit>
void for_routes(const RouteSort& call, const Visit& visit) {
  if (!call.by_choice) {
    for (int64_t route = 0; route < call.tokens * call.choices; ++route) visit(route);
    return;
  }
  for (int64_t j = 0; j < call.choices; ++j) {
    for (int64_t token = 0; token < call.tokens; ++token) visit(token * call.choices + j);
  }
}

// Of one expert, whose routes are [begin, end).
void limit_expert(const RouteLimit& call, int64_t expert, int32_t* begin, int32_t* end) {
  const int64_t kept = std::min<int64_t>(call.capacity, end - begin);
  if (kept < end - begin && call.priority == RoutePriority::kScore) {
    const auto key = [&](int32_t route) {
      return call.key[route / call.choices * call.experts + expert];
    };
    const auto better = [&](int32_t a, int32_t b) {
      const float ka = key(a), kb = key(b);
      // NaN comes last, so that the order is one.
      if (std::isnan(ka) != std::isnan(kb)) return std::isnan(kb);
      return ka > kb || (!(kb > ka) && a < b);
    };
    std::nth_element(begin, begin + kept, end, better);
    std::sort(begin, begin + kept);
  }
  for (int64_t i = 0; i < end - begin; ++i) {
    const int32_t route = begin[i];
    if (i >= kept) call.chosen[route] = -1;
    if (call.places != nullptr) call.places[route] = i < kept ? static_cast<int32_t>(i) : -1;
  }
}

}  // namespace

void sort_routes(const RouteSort& call, ThreadPool& /*pool*/) {
  const int64_t all = call.tokens * call.choices;
  std::fill_n(call.offsets, call.experts + 1, 0);
  for (int64_t route = 0; route < all; ++route) {
    if (call.chosen[route] >= 0) ++call.offsets[call.chosen[route] + 1];
  }
  for (int64_t e = 0; e < call.experts; ++e) call.offsets[e + 1] += call.offsets[e];
  // offsets[e] runs through the rows of e, to those of e + 1, and goes back by one at the end.
  for_routes(call, [&](int64_t route) {
    const int32_t expert = call.chosen[route];
    const int32_t row = expert < 0 ? -1 : call.offsets[expert]++;
    if (row >= 0) call.routes[row] = static_cast<int32_t>(route);
    if (call.rows != nullptr) call.rows[route] = row;
  });
  for (int64_t e = call.experts; e > 0; --e) call.offsets[e] = call.offsets[e - 1];
  call.offsets[0] = 0;
}

void all_routes(const AllRoutes& call, ThreadPool& pool) {
  for (int64_t e = 0; e <= call.experts; ++e) {
    call.offsets[e] = static_cast<int32_t>(e * call.tokens);
  }
  pool.for_range(call.tokens, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t route = begin * call.experts; route < end * call.experts; ++route) {
      const int64_t expert = route % call.experts;
      const int64_t row = expert * call.tokens + route / call.experts;
      call.chosen[route] = static_cast<int32_t>(expert);
      call.rows[route] = static_cast<int32_t>(row);
      call.routes[row] = static_cast<int32_t>(route);
    }
  });
}

void limit_routes(const RouteLimit& call, ThreadPool& pool) {
  if (call.places != nullptr) std::fill_n(call.places, call.tokens * call.choices, -1);
  pool.run(call.experts, [&](int64_t expert) {
    limit_expert(call, expert, call.routes + call.offsets[expert],
                 call.routes + call.offsets[expert + 1]);
  });
}

int64_t expert_capacity(int64_t tokens, int64_t experts, double factor, int64_t least) {
  const double exact = static_cast<double>(tokens) / static_cast<double>(experts) * factor;
  constexpr float kMost = 0x1p62f;
  const float rounded = std::min(std::ceil(static_cast<float>(exact)), kMost);
  return std::max(least, static_cast<int64_t>(rounded));
}

}  // namespace ds::kernels
