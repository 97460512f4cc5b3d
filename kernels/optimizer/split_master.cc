#include "kernels/optimizer/split_master.h"

#include "base/thread_pool.h"

namespace ds::kernels {
namespace {
constexpr int64_t kGrain = int64_t{1} << 16;
}

void split_masters(int64_t n, const float* masters, bfloat16* weights, uint16_t* low,
                   ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) split_master(masters[i], weights[i], low[i]);
  });
}

void join_masters(int64_t n, const bfloat16* weights, const uint16_t* low, float* masters,
                  ThreadPool& pool) {
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) masters[i] = join_master(weights[i], low[i]);
  });
}

}  // namespace ds::kernels
