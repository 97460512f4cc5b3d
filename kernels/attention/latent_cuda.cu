// Keys of latent attention on a GPU: copies of channels, a thread for each, and sums over heads in
// the order of the CPU.
#include "kernels/attention/latent.h"
#include "kernels/cuda/device.cuh"

namespace ds::kernels {
namespace {

using namespace cuda;

template <class T>
__global__ void make_keys(LatentKeys s, const T* expanded, const T* shared, T* keys, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x, head = s.plain + s.turning;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t row = i / head, channel = i - row * head;
    keys[i] = channel < s.plain ? expanded[row * (s.plain + s.values) + channel]
                                : shared[row / s.heads * s.shared_pitch + channel - s.plain];
  }
}

// A thread has a plain channel of one head, or a turning one of all.
template <class T>
__global__ void split_gradients(LatentKeys s, const T* dkeys, T* dexpanded, T* dshared, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x, head = s.plain + s.turning;
  const int64_t plain = s.heads * s.plain, of_token = plain + s.turning;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t token = i / of_token, at = i - token * of_token;
    const T* const from = dkeys + token * s.heads * head;
    if (at < plain) {
      const int64_t h = at / s.plain, channel = at - h * s.plain;
      dexpanded[(token * s.heads + h) * (s.plain + s.values) + channel] = from[h * head + channel];
      continue;
    }
    float sum = 0;
    for (int64_t h = 0; h < s.heads; ++h) sum += widen(from[h * head + s.plain + at - plain]);
    dshared[token * s.shared_pitch + at - plain] = narrow<T>(sum);
  }
}

}  // namespace

void latent_keys(const LatentKeys& s, const void* expanded, const void* shared, void* keys,
                 const GpuStream& on) {
  const int64_t n = s.tokens * s.heads * (s.plain + s.turning);
  with_float_type(s.type, [&](auto t) {
    using T = decltype(t);
    launch(on, "latent_keys", &make_keys<T>, grid_for(on, n), s, static_cast<const T*>(expanded),
           static_cast<const T*>(shared), static_cast<T*>(keys), n);
  });
}

void latent_keys_backward(const LatentKeys& s, const void* dkeys, void* dexpanded, void* dshared,
                          const GpuStream& on) {
  const int64_t n = s.tokens * (s.heads * s.plain + s.turning);
  with_float_type(s.type, [&](auto t) {
    using T = decltype(t);
    launch(on, "latent_keys_backward", &split_gradients<T>, grid_for(on, n), s,
           static_cast<const T*>(dkeys), static_cast<T*>(dexpanded), static_cast<T*>(dshared), n);
  });
}

}  // namespace ds::kernels
