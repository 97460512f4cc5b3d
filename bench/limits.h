// The machine's limits, measured: what a rate in the benchmark is compared with.
#pragma once

#include <string>

#include "base/thread_pool.h"

namespace ds::bench {

struct Limits {
  double fp32_flops = 0;  // fused multiply-adds from registers, widest vectors
  double bf16_flops = 0;  // AMX tiles, else AVX-512 dot products, else the fp32 rate
  // Bytes read + written per second, from buffers in huge pages that are far larger than the
  // caches.
  double read = 0;
  double copy = 0;         // plain stores
  double stream_copy = 0;  // non-temporal stores
  double mixed = 0;        // Adam's traffic without its arithmetic: of 4 arrays, 3 are written too
};

// Takes about a second per call.
Limits measure_limits(ThreadPool& pool);

// One line for people.
std::string limits_text(const Limits& limits);

}  // namespace ds::bench
