// Routes on a GPU: a counting sort by expert that keeps the order of routes. A warp has a tile of
// routes and counts them, one warp of a single block adds up an expert's counts of all tiles, and
// then every route knows its row. What experts drop is decided by a block for each.
#include "kernels/cuda/device.cuh"
#include "kernels/moe/routes.h"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kTileWarps = 4;  // tiles of a block
constexpr int kMostScanWarps = 32;

__device__ __forceinline__ int lane_of() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int warp_of() { return static_cast<int>(threadIdx.x) / kWarp; }

// Lanes of a warp that have the same expert.
struct Equals {
  int before = 0, all = 0;
  __device__ __forceinline__ bool last() const { return before == all - 1; }
};
__device__ __forceinline__ Equals equals_of(int32_t expert) {
  Equals out;
#pragma unroll
  for (int lane = 0; lane < kWarp; ++lane) {
    const bool same = __shfl_sync(kAllLanes, expert, lane) == expert;
    out.all += same ? 1 : 0;
    out.before += same && lane < lane_of() ? 1 : 0;
  }
  return out;
}

// ---- sorting ----

struct Sort {
  RouteSort call;
  int64_t tiles;

  __device__ __forceinline__ int64_t routes() const { return call.tokens * call.choices; }
  // Number `at` of the order before sorting.
  __device__ __forceinline__ int64_t route(int64_t at) const {
    return call.by_choice ? at % call.tokens * call.choices + at / call.tokens : at;
  }
  __device__ __forceinline__ int32_t expert(int64_t at) const {
    if (at >= routes()) return -1;
    const int32_t expert = call.chosen[route(at)];
    return expert < call.experts ? expert : -1;
  }
  // How many routes of an expert a tile has; then, how many the tiles before it have.
  __device__ __forceinline__ int32_t& count(int64_t expert, int64_t tile) const {
    return call.scratch[expert * tiles + tile];
  }
};

// The warp's tile; the same for all lanes.
__device__ __forceinline__ int64_t tile_of() {
  return int64_t{blockIdx.x} * kTileWarps + warp_of();
}

__global__ void __launch_bounds__(kTileWarps* kWarp) count_tiles(Sort sort) {
  const int64_t tile = tile_of();
  if (tile >= sort.tiles) return;
  for (int64_t e = lane_of(); e < sort.call.experts; e += kWarp) sort.count(e, tile) = 0;
  __syncwarp();
  for (int64_t at = tile * kRouteTile; at < (tile + 1) * kRouteTile; at += kWarp) {
    const int32_t expert = sort.expert(at + lane_of());
    const Equals equals = equals_of(expert);
    if (expert >= 0 && equals.last()) sort.count(expert, tile) += equals.all;
    __syncwarp();
  }
}

// The sum of a value over the lanes up to the own one.
__device__ __forceinline__ int32_t sum_up_to(int32_t value) {
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int32_t before = __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(offset));
    if (lane_of() >= offset) value += before;
  }
  return value;
}

// Sums of consecutive numbers, 32 at a time: visit(i, sum of those before i, sum up to i).
template <class Value, class Visit>
__device__ __forceinline__ int32_t add_up(int64_t n, const Value& value, const Visit& visit) {
  int32_t total = 0;
  for (int64_t begin = 0; begin < n; begin += kWarp) {
    const int64_t i = begin + lane_of();
    const int32_t own = i < n ? value(i) : 0;
    const int32_t sum = total + sum_up_to(own);
    if (i < n) visit(i, sum - own, sum);
    total = __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  return total;
}

// One block.
__global__ void __launch_bounds__(kMostScanWarps* kWarp) scan_counts(Sort sort) {
  int32_t* const offsets = sort.call.offsets;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  for (int64_t e = warp_of(); e < sort.call.experts; e += warps) {
    const int32_t all = add_up(
        sort.tiles, [&](int64_t tile) { return sort.count(e, tile); },
        [&](int64_t tile, int32_t before, int32_t) { sort.count(e, tile) = before; });
    if (lane_of() == 0) offsets[e + 1] = all;
  }
  __syncthreads();
  if (warp_of() != 0) return;
  add_up(
      sort.call.experts, [&](int64_t e) { return offsets[e + 1]; },
      [&](int64_t e, int32_t, int32_t sum) { offsets[e + 1] = sum; });
  if (lane_of() == 0) offsets[0] = 0;
}

__global__ void __launch_bounds__(kTileWarps* kWarp) place_routes(Sort sort) {
  const int64_t tile = tile_of();
  if (tile >= sort.tiles) return;
  for (int64_t at = tile * kRouteTile; at < (tile + 1) * kRouteTile; at += kWarp) {
    const int64_t own = at + lane_of();
    const int32_t expert = sort.expert(own);
    const Equals equals = equals_of(expert);
    int32_t row = -1, next = 0;
    if (expert >= 0) {
      next = sort.count(expert, tile);
      row = sort.call.offsets[expert] + next + equals.before;
      sort.call.routes[row] = static_cast<int32_t>(sort.route(own));
    }
    if (own < sort.routes() && sort.call.rows != nullptr) sort.call.rows[sort.route(own)] = row;
    __syncwarp();  // all have read what the last one changes
    if (expert >= 0 && equals.last()) sort.count(expert, tile) = next + equals.all;
    __syncwarp();
  }
}

__global__ void make_all_routes(AllRoutes call) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t e = first; e <= call.experts; e += step) {
    call.offsets[e] = static_cast<int32_t>(e * call.tokens);
  }
  for (int64_t route = first; route < call.tokens * call.experts; route += step) {
    const int64_t expert = route % call.experts;
    const int64_t row = expert * call.tokens + route / call.experts;
    call.chosen[route] = static_cast<int32_t>(expert);
    call.rows[route] = static_cast<int32_t>(row);
    call.routes[row] = static_cast<int32_t>(route);
  }
}

// ---- limits ----

constexpr int kLimitWarps = 8, kLimitThreads = kLimitWarps * kWarp;
constexpr int kDigits = 256;

// What an expert keeps, of its routes [begin, begin + n): those whose order() is smallest.
struct Limit {
  const RouteLimit& call;
  int64_t expert;
  const int32_t* routes;
  int64_t n;

  // Numbers that are different for all routes, the largest key first and NaN last.
  __device__ __forceinline__ uint64_t order(int64_t i) const {
    const int32_t route = routes[i];
    const float key =
        call.key[route / call.choices * call.experts + expert] + 0.0f;  // -0 becomes 0
    const unsigned bits = __float_as_uint(key);
    unsigned rank = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    if (key != key) rank = 0;
    return static_cast<uint64_t>(~rank) << 32 | static_cast<uint32_t>(route);
  }

  __device__ __forceinline__ void set(int64_t i, int64_t place) const {
    const int32_t route = routes[i];
    if (place < 0) call.chosen[route] = -1;
    if (call.places != nullptr) call.places[route] = static_cast<int32_t>(place);
  }
};

// The digit of the number `wanted` (from 1 on) by counts of digits, and which one among equals it
// is; for thread 0's warp, whose lanes all get it.
struct Digit {
  int digit;
  int32_t among;
};
__device__ __forceinline__ Digit find_digit(const int32_t* counts, int32_t wanted) {
  constexpr int kEach = kDigits / kWarp;
  int32_t own = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) own += counts[lane_of() * kEach + k];
  int32_t before = sum_up_to(own) - own;
  Digit found{-1, 0};
  for (int k = 0; k < kEach; ++k) {
    const int32_t count = counts[lane_of() * kEach + k];
    if (before < wanted && wanted <= before + count) {
      found = {lane_of() * kEach + k, wanted - before};
    }
    before += count;
  }
  const unsigned lanes = __ballot_sync(kAllLanes, found.digit >= 0 ? 1 : 0);
  const int lane = __ffs(static_cast<int>(lanes)) - 1;
  return {__shfl_sync(kAllLanes, found.digit, lane), __shfl_sync(kAllLanes, found.among, lane)};
}

// Number `wanted` of the smallest orders, digit by digit, by all threads of a block.
__device__ __forceinline__ uint64_t find_order(const Limit& limit, int32_t wanted, int32_t* counts,
                                               Digit* shared) {
  uint64_t prefix = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < limit.n; i += kLimitThreads) {
      const uint64_t order = limit.order(i);
      if (shift == 56 || order >> (shift + 8) == prefix) {
        atomicAdd(&counts[(order >> shift) & (kDigits - 1)], 1);
      }
    }
    __syncthreads();
    if (warp_of() == 0) {
      const Digit found = find_digit(counts, wanted);
      if (lane_of() == 0) *shared = found;
    }
    __syncthreads();
    prefix = prefix << 8 | static_cast<uint64_t>(shared->digit);
    wanted = shared->among;
  }
  return prefix;
}

__global__ void fill_places(int32_t* places, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) places[i] = -1;
}

// A block for each expert.
__global__ void __launch_bounds__(kLimitThreads) limit_experts(RouteLimit call) {
  __shared__ int32_t counts[kDigits];
  static_assert(kDigits == kLimitThreads);
  __shared__ int32_t of_warps[kLimitWarps];
  __shared__ Digit digit;
  const int32_t begin = call.offsets[blockIdx.x];
  const Limit limit{call, blockIdx.x, call.routes + begin, call.offsets[blockIdx.x + 1] - begin};
  const int64_t kept = call.capacity < limit.n ? call.capacity : limit.n;
  if (kept == limit.n || kept == 0 || call.priority == RoutePriority::kOrder) {
    for (int64_t i = threadIdx.x; i < limit.n; i += kLimitThreads) limit.set(i, i < kept ? i : -1);
    return;
  }
  const uint64_t last = find_order(limit, static_cast<int32_t>(kept), counts, &digit);
  int32_t next = 0;  // place
  for (int64_t at = 0; at < limit.n; at += kLimitThreads) {
    const int64_t i = at + threadIdx.x;
    const bool keep = i < limit.n && limit.order(i) <= last;
    const unsigned lanes = __ballot_sync(kAllLanes, keep ? 1 : 0);
    if (lane_of() == 0) of_warps[warp_of()] = __popc(lanes);
    __syncthreads();
    int32_t place = next + __popc(lanes & ((1u << lane_of()) - 1u));
#pragma unroll
    for (int w = 0; w < kLimitWarps; ++w) {
      if (w < warp_of()) place += of_warps[w];
      next += of_warps[w];
    }
    if (i < limit.n) limit.set(i, keep ? place : -1);
    __syncthreads();
  }
}

}  // namespace

void sort_routes(const RouteSort& call, const GpuStream& on) {
  const Sort sort{call, route_tiles(call.tokens * call.choices)};
  const Grid tiles{(sort.tiles + kTileWarps - 1) / kTileWarps, kTileWarps * kWarp};
  const int warps = call.experts < kMostScanWarps ? static_cast<int>(call.experts) : kMostScanWarps;
  launch(on, "sort_routes", &count_tiles, tiles, sort);
  launch(on, "sort_routes", &scan_counts, {1, warps * kWarp}, sort);
  launch(on, "sort_routes", &place_routes, tiles, sort);
}

void all_routes(const AllRoutes& call, const GpuStream& on) {
  const int64_t routes = call.tokens * call.experts;
  launch(on, "all_routes", &make_all_routes, grid_for(on, routes > 0 ? routes : 1), call);
}

void limit_routes(const RouteLimit& call, const GpuStream& on) {
  const int64_t routes = call.tokens * call.choices;
  if (call.places != nullptr) {
    launch(on, "limit_routes", &fill_places, grid_for(on, routes), call.places, routes);
  }
  launch(on, "limit_routes", &limit_experts, {call.experts, kLimitThreads}, call);
}

}  // namespace ds::kernels
