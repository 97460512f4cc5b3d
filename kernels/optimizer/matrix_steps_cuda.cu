// The steps on a GPU: the bits of the CPU.
#include <cmath>

#include "kernels/cuda/device.cuh"
#include "kernels/optimizer/matrix_steps.h"

namespace ds::kernels {
namespace {

using namespace cuda;

constexpr int kPackOf = kPack<float>;

// y = element(x, y) over packs where they fit.
template <int N, class Element>
__device__ __forceinline__ void each(int64_t n, const float* x, float* y, const Element& element) {
  const int64_t step = int64_t{N} * gridDim.x * blockDim.x;
  for (int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N; i < n; i += step) {
    const Pack<float, N> from = load_pack<float, N>(x + i);
    Pack<float, N> to = load_pack<float, N>(y + i);
#pragma unroll
    for (int e = 0; e < N; ++e) to.at[e] = element(from.at[e], to.at[e]);
    store_pack(y + i, to);
  }
}

template <int N>
__global__ void __launch_bounds__(256)
    combine_packs(int64_t n, float a, const float* x, float b, float* y) {
  if (b == 0) {
    each<N>(n, x, y, [&](float from, float) { return a * from; });
  } else {
    each<N>(n, x, y, [&](float from, float to) { return a * from + b * to; });
  }
}

template <int N>
__global__ void __launch_bounds__(256)
    divide_packs(int64_t n, const double* squares, double eps, float* y) {
  const auto factor = static_cast<float>(1 / (sqrt(*squares) + eps));
  each<N>(n, y, y, [&](float, float to) { return to * factor; });
}

__global__ void add_diagonal(int64_t side, float value, float* y) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < side) y[i * side + i] += value;
}

}  // namespace

void combine(int64_t n, float a, const float* x, float b, float* y, const GpuStream& on) {
  if (packs_fit<kPackOf>(n, x, static_cast<const float*>(y))) {
    launch(on, "combine", &combine_packs<kPackOf>, grid_for(on, n / kPackOf), n, a, x, b, y);
  } else {
    launch(on, "combine", &combine_packs<1>, grid_for(on, n), n, a, x, b, y);
  }
}

void divide_by_norm(int64_t n, const double* squares, double eps, float* y, const GpuStream& on) {
  if (packs_fit<kPackOf>(n, static_cast<const float*>(y))) {
    launch(on, "divide_by_norm", &divide_packs<kPackOf>, grid_for(on, n / kPackOf), n, squares, eps,
           y);
  } else {
    launch(on, "divide_by_norm", &divide_packs<1>, grid_for(on, n), n, squares, eps, y);
  }
}

void add_to_diagonal(int64_t side, float value, float* y, const GpuStream& on) {
  launch(on, "add_to_diagonal", &add_diagonal, {(side + 127) / 128, 128}, side, value, y);
}

}  // namespace ds::kernels
