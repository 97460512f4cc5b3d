// Splitting and joining of fp32 masters on a GPU.
#include "kernels/cuda/map.cuh"
#include "kernels/optimizer/split_master.h"

namespace ds::kernels {
namespace {

using namespace cuda;

struct SplitBody {
  const float* masters;
  bfloat16* weights;
  uint16_t* low;
  template <int N>
  using Input = Pack<float, N>;
  template <int N>
  __device__ __forceinline__ Input<N> load(int64_t at) const {
    return load_pack<float, N>(masters + at);
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t at, const Input<N>& in) const {
    Pack<bfloat16, N> high;
    Pack<uint16_t, N> rest;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const unsigned bits = __float_as_uint(in.at[i]);
      high.at[i].bits = static_cast<uint16_t>((bits + 0x8000u) >> 16);
      rest.at[i] = static_cast<uint16_t>(bits);
    }
    store_pack(weights + at, high);
    store_pack(low + at, rest);
  }
};

struct JoinBody {
  const bfloat16* weights;
  const uint16_t* low;
  float* masters;
  template <int N>
  struct Input {
    Pack<bfloat16, N> high;
    Pack<uint16_t, N> low;
  };
  template <int N>
  __device__ __forceinline__ Input<N> load(int64_t at) const {
    return {load_pack<bfloat16, N>(weights + at), load_pack<uint16_t, N>(low + at)};
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t at, const Input<N>& in) const {
    Pack<float, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const unsigned high = static_cast<unsigned>(in.high.at[i].bits) << 16;
      out.at[i] = __uint_as_float(
          high + static_cast<unsigned>(static_cast<int>(static_cast<int16_t>(in.low.at[i]))));
    }
    store_pack(masters + at, out);
  }
};

}  // namespace

void split_masters(int64_t n, const float* masters, bfloat16* weights, uint16_t* low,
                   const GpuStream& on) {
  map<8>(on, "split_masters", SplitBody{masters, weights, low}, n, masters,
         static_cast<const bfloat16*>(weights), static_cast<const uint16_t*>(low));
}

void join_masters(int64_t n, const bfloat16* weights, const uint16_t* low, float* masters,
                  const GpuStream& on) {
  map<8>(on, "join_masters", JoinBody{weights, low, masters}, n, weights, low,
         static_cast<const float*>(masters));
}

}  // namespace ds::kernels
