// Splitting and joining of fp32 masters on a GPU.
#include "kernels/cuda/map.cuh"
#include "kernels/optimizer/split_master.h"

namespace ds::kernels {
namespace {

using namespace cuda;

struct Split {
  template <int N>
  __device__ __forceinline__ void operator()(Pack<bfloat16, N>& weights, Pack<uint16_t, N>& low,
                                             const Pack<float, N>& masters) const {
#pragma unroll
    for (int i = 0; i < N; ++i) split_master(masters.at[i], weights.at[i], low.at[i]);
  }
};

struct Join {
  __device__ __forceinline__ float operator()(bfloat16 weight, uint16_t low) const {
    return join_master(weight, low);
  }
};

}  // namespace

void split_masters(int64_t n, const float* masters, bfloat16* weights, uint16_t* low,
                   const GpuStream& on) {
  map_each<8>(on, "split_masters", Split(), n, std::tuple(weights, low), std::tuple(masters));
}

void join_masters(int64_t n, const bfloat16* weights, const uint16_t* low, float* masters,
                  const GpuStream& on) {
  map_each<8>(on, "join_masters", Each<Join>(), n, std::tuple(masters), std::tuple(weights, low));
}

}  // namespace ds::kernels
