// Keys of latent attention. Plain loops over one head's channels at a time: memory takes the time.
#include "kernels/attention/latent.h"

#include <algorithm>

#include "base/thread_pool.h"

namespace ds::kernels {
namespace {

template <class T>
void keys_of_token(const LatentKeys& s, const T* expanded, const T* shared, T* keys) {
  for (int64_t h = 0; h < s.heads; ++h) {
    std::copy_n(expanded, s.plain, keys);
    std::copy_n(shared, s.turning, keys + s.plain);
    expanded += s.plain + s.values;
    keys += s.plain + s.turning;
  }
}

template <class T>
void gradients_of_token(const LatentKeys& s, const T* dkeys, T* dexpanded, T* dshared) {
  const int64_t head = s.plain + s.turning;
  for (int64_t h = 0; h < s.heads; ++h) {
    std::copy_n(dkeys + h * head, s.plain, dexpanded + h * (s.plain + s.values));
  }
  // Some channels at a time, over all heads: their sums stay where they are added up.
  constexpr int64_t kTogether = 64;
  for (int64_t first = 0; first < s.turning; first += kTogether) {
    const int64_t count = std::min(kTogether, s.turning - first);
    float sum[kTogether] = {};
    for (int64_t h = 0; h < s.heads; ++h) {
      const T* const from = dkeys + h * head + s.plain + first;
      for (int64_t i = 0; i < count; ++i) sum[i] += to_float(from[i]);
    }
    for (int64_t i = 0; i < count; ++i) dshared[first + i] = from_float<T>(sum[i]);
  }
}

template <class Body>
void for_tokens(const LatentKeys& s, ThreadPool& pool, const Body& body) {
  const int64_t row = std::max<int64_t>(1, s.heads * (s.plain + s.turning));
  pool.for_range(s.tokens, std::max<int64_t>(1, 16384 / row), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) body(token);
  });
}

}  // namespace

void latent_keys(const LatentKeys& s, const void* expanded, const void* shared, void* keys,
                 ThreadPool& pool) {
  with_float_type(s.type, [&](auto t) {
    using T = decltype(t);
    for_tokens(s, pool, [&](int64_t token) {
      keys_of_token(s, static_cast<const T*>(expanded) + token * s.heads * (s.plain + s.values),
                    static_cast<const T*>(shared) + token * s.shared_pitch,
                    static_cast<T*>(keys) + token * s.heads * (s.plain + s.turning));
    });
  });
}

void latent_keys_backward(const LatentKeys& s, const void* dkeys, void* dexpanded, void* dshared,
                          ThreadPool& pool) {
  with_float_type(s.type, [&](auto t) {
    using T = decltype(t);
    for_tokens(s, pool, [&](int64_t token) {
      gradients_of_token(s, static_cast<const T*>(dkeys) + token * s.heads * (s.plain + s.turning),
                         static_cast<T*>(dexpanded) + token * s.heads * (s.plain + s.values),
                         static_cast<T*>(dshared) + token * s.shared_pitch);
    });
  });
}

}  // namespace ds::kernels
