// The machine's limits, measured: what a rate in the benchmark is compared with.
#pragma once

#include "base/thread_pool.h"

namespace ds::bench {

struct Limits {
  double fp32_flops = 0;   // fused multiply-adds from registers, widest vectors
  double bf16_flops = 0;   // AMX tiles, else AVX-512 dot products, else the fp32 rate
  double copy = 0;         // bytes read + written per second, plain stores, beyond the caches
  double stream_copy = 0;  // the same with non-temporal stores
};

// Takes about half a second per call.
Limits measure_limits(ThreadPool& pool);

}  // namespace ds::bench
