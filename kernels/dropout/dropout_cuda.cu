// Dropout on a GPU: a thread makes the random blocks of its pack, the bits of base/philox.h.
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/dropout/dropout.h"

namespace ds::kernels {
namespace {

using namespace cuda;

// The bits of elements element ... element + N - 1, of which N is 1 or a multiple of 4.
template <int N>
__device__ __forceinline__ void random_bits(const RandomStream& stream, uint64_t element,
                                            uint32_t* bits) {
  const auto phase = static_cast<unsigned>(element % 4);
  if constexpr (N == 1) {
    const Random4 words = random_block(stream, element / 4);
    const uint32_t low = (phase & 1) != 0 ? words.at[1] : words.at[0];
    const uint32_t high = (phase & 1) != 0 ? words.at[3] : words.at[2];
    bits[0] = (phase & 2) != 0 ? high : low;
  } else {
    static_assert(N % 4 == 0);
    uint32_t words[N + 4];
#pragma unroll
    for (int b = 0; b < N / 4; ++b) {
      const Random4 four = random_block(stream, element / 4 + static_cast<uint64_t>(b));
#pragma unroll
      for (int i = 0; i < 4; ++i) words[4 * b + i] = four.at[i];
    }
    // Where packs straddle blocks, which they do for all threads of a sample or none, one more
    // block and a shift in two steps: registers have no index.
    if (phase != 0) {
      const Random4 four = random_block(stream, element / 4 + N / 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) words[N + i] = four.at[i];
#pragma unroll
      for (int i = 0; i < N + 3; ++i) words[i] = (phase & 1) != 0 ? words[i + 1] : words[i];
#pragma unroll
      for (int i = 0; i < N; ++i) words[i] = (phase & 2) != 0 ? words[i + 2] : words[i];
    }
#pragma unroll
    for (int i = 0; i < N; ++i) bits[i] = words[i];
  }
}

__device__ __forceinline__ uint64_t element_of(int64_t sample, int64_t within) {
  return (static_cast<uint64_t>(sample) << RandomStream::kSampleBits) +
         static_cast<uint64_t>(within);
}

template <bool kRandom, bool kResidual, class T>
struct DropoutBody {
  DropoutMask mask;
  const T *x, *residual;
  T* y;
  template <int N>
  struct Input {
    Pack<T, N> x;
    Pack<T, kResidual ? N : 1> residual;
  };
  template <int N>
  __device__ __forceinline__ Input<N> load(int64_t at) const {
    Input<N> in{};
    in.x = load_pack<T, N>(x + at);
    if constexpr (kResidual) in.residual = load_pack<T, N>(residual + at);
    return in;
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t at, const Input<N>& in) const {
    float v[N];
    widen_pack(in.x, v);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= mask.keep_scale;
    if constexpr (kRandom) {
      uint32_t bits[N];
      const int64_t sample = at / mask.sample_elements, within = at % mask.sample_elements;
      if (within + N <= mask.sample_elements) {
        random_bits<N>(mask.stream, element_of(sample, within), bits);
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const int64_t next = (at + i) / mask.sample_elements;
          random_bits<1>(mask.stream, element_of(next, at + i - next * mask.sample_elements),
                         bits + i);
        }
      }
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = bits[i] < mask.threshold ? 0.0f : v[i];
    }
    if constexpr (kResidual) {
      float r[N];
      widen_pack(in.residual, r);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] += r[i];
    }
    store_pack(y + at, narrow_pack<T, N>(v));
  }
};

template <class T>
void dropout_any(const DropoutMask& mask, const T* x, const T* residual, int64_t n, T* y,
                 const GpuStream& on) {
  const auto run = [&](auto random, auto with_residual) {
    constexpr bool kRandom = decltype(random)::value, kResidual = decltype(with_residual)::value;
    const DropoutBody<kRandom, kResidual, T> body{mask, x, residual, y};
    map<kPack<T>>(on, "dropout", body, n, x, kResidual ? residual : x, static_cast<const T*>(y));
  };
  const auto with_residual = [&](auto random) {
    if (residual != nullptr) {
      run(random, std::true_type());
    } else {
      run(random, std::false_type());
    }
  };
  if (mask.threshold == 0) {
    with_residual(std::false_type());
  } else {
    with_residual(std::true_type());
  }
}

}  // namespace

void dropout(const DropoutMask& mask, const float* x, const float* residual, int64_t n, float* y,
             const GpuStream& on) {
  dropout_any(mask, x, residual, n, y, on);
}
void dropout(const DropoutMask& mask, const bfloat16* x, const bfloat16* residual, int64_t n,
             bfloat16* y, const GpuStream& on) {
  dropout_any(mask, x, residual, n, y, on);
}
void dropout(const DropoutMask& mask, const float16* x, const float16* residual, int64_t n,
             float16* y, const GpuStream& on) {
  dropout_any(mask, x, residual, n, y, on);
}

}  // namespace ds::kernels
