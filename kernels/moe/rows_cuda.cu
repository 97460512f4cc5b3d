// Rows between tokens and experts on a GPU, in packs of 16 bytes where all rows are aligned. A
// token's routes are added in their order, with the bits of the CPU.
#include "kernels/cuda/map.cuh"
#include "kernels/moe/routes.h"

namespace ds::kernels {
namespace {

using namespace cuda;

// Null where the route has no row that is there.
template <class T>
__device__ __forceinline__ const T* row_of(const ExpertRows& from, int32_t expert, int32_t row) {
  if (expert < 0 || from.bases[expert] == nullptr) return nullptr;
  return static_cast<const T*>(from.bases[expert]) +
         (int64_t{row} - from.offsets[expert]) * from.width;
}

template <class T>
struct GatherBody {
  GatherRows call;
  template <int N>
  struct Input {
    Pack<T, N> pack;
  };
  template <int N>
  __device__ __forceinline__ int column(int64_t) const {
    return 0;
  }
  template <int N>
  __device__ __forceinline__ Input<N> load(int64_t row, int64_t column) const {
    const int64_t token = call.routes[row] / call.choices;
    return {load_pack<T, N>(static_cast<const T*>(call.x) + token * call.width + column)};
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t row, int64_t column, int,
                                        const Input<N>& in) const {
    Pack<T, N> out = in.pack;
    if (call.weights != nullptr) {
      const float weight = call.weights[call.routes[row]];
#pragma unroll
      for (int i = 0; i < N; ++i) out.at[i] = narrow<T>(widen(in.pack.at[i]) * weight);
    }
    store_pack(static_cast<T*>(call.out) + row * call.width + column, out);
  }
};

template <class T>
struct SumBody {
  SumRows call;
  template <int N>
  struct Input {
    Pack<T, N> sum;
  };
  template <int N>
  __device__ __forceinline__ int column(int64_t) const {
    return 0;
  }
  template <int N>
  __device__ __forceinline__ Input<N> load(int64_t token, int64_t column) const {
    float sums[N] = {};
    for (int64_t j = token * call.choices; j < (token + 1) * call.choices; ++j) {
      const T* const row = row_of<T>(call.from, call.chosen[j], call.rows[j]);
      if (row == nullptr) continue;
      const float weight = call.weights != nullptr ? call.weights[j] : 1.0f;
      float v[N];
      widen_pack(load_pack<T, N>(row + column), v);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += weight * v[i];
    }
    return {narrow_pack<T, N>(sums)};
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t token, int64_t column, int,
                                        const Input<N>& in) const {
    store_pack(static_cast<T*>(call.y) + token * call.from.width + column, in.sum);
  }
};

constexpr int kDotWarps = 8;  // routes of a block

template <class T, int N>
__global__ void __launch_bounds__(kDotWarps* kWarp) dot_routes(RouteDots call) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t route = int64_t{blockIdx.x} * kDotWarps + threadIdx.x / kWarp;
  if (route >= call.tokens * call.choices) return;
  const int64_t width = call.from.width;
  const T* const row = row_of<T>(call.from, call.chosen[route], call.rows[route]);
  const T* const x = static_cast<const T*>(call.x) + route / call.choices * width;
  float sum = 0;
  for (int64_t i = int64_t{lane} * N; i < width && row != nullptr; i += kWarp * N) {
    float a[N], b[N];
    widen_pack(load_pack<T, N>(row + i), a);
    widen_pack(load_pack<T, N>(x + i), b);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += a[k] * b[k];
  }
  sum = warp_sum(sum);
  if (lane == 0) call.dots[route] = sum;
}

}  // namespace

void gather_rows(const GatherRows& call, const GpuStream& on) {
  with_float_type(call.type, [&](auto t) {
    using T = decltype(t);
    const GatherBody<T> body{call};
    if (packs_fit<kPack<T>>(call.width, static_cast<const T*>(call.x),
                            static_cast<const T*>(call.out))) {
      map_rows<kPack<T>>(on, "gather_rows", body, call.rows, call.width);
    } else {
      map_rows<1>(on, "gather_rows", body, call.rows, call.width);
    }
  });
}

void sum_rows(const SumRows& call, const GpuStream& on) {
  with_float_type(call.from.type, [&](auto t) {
    using T = decltype(t);
    const SumBody<T> body{call};
    if (call.from.aligned && packs_fit<kPack<T>>(call.from.width, static_cast<const T*>(call.y))) {
      map_rows<kPack<T>>(on, "sum_rows", body, call.tokens, call.from.width);
    } else {
      map_rows<1>(on, "sum_rows", body, call.tokens, call.from.width);
    }
  });
}

void route_dots(const RouteDots& call, const GpuStream& on) {
  const Grid grid{(call.tokens * call.choices + kDotWarps - 1) / kDotWarps, kDotWarps * kWarp};
  with_float_type(call.from.type, [&](auto t) {
    using T = decltype(t);
    if (call.from.aligned && packs_fit<kPack<T>>(call.from.width, static_cast<const T*>(call.x))) {
      launch(on, "route_dots", &dot_routes<T, kPack<T>>, grid, call);
    } else {
      launch(on, "route_dots", &dot_routes<T, 1>, grid, call);
    }
  });
}

}  // namespace ds::kernels
