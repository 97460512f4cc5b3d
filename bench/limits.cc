// Measures arithmetic peak and memory bandwidth: register-only FMA loops, and streams through
// buffers far larger than the caches.
#include "bench/limits.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/limits.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu.h"

HWY_BEFORE_NAMESPACE();
namespace ds::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 12 independent chains cover the latency of two FMA units and fit 16 registers. Returns the FLOP
// done; the sum keeps the compiler from dropping the work.
double fma_loop(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, 0.999f), b = hn::Set(d, 0.001f);
  auto c0 = hn::Set(d, 0.0f), c1 = hn::Set(d, 0.1f), c2 = hn::Set(d, 0.2f), c3 = hn::Set(d, 0.3f);
  auto c4 = hn::Set(d, 0.4f), c5 = hn::Set(d, 0.5f), c6 = hn::Set(d, 0.6f), c7 = hn::Set(d, 0.7f);
  auto c8 = hn::Set(d, 0.8f), c9 = hn::Set(d, 0.9f), c10 = hn::Set(d, 1.0f), c11 = hn::Set(d, 1.1f);
  for (int64_t i = 0; i < rounds; ++i) {
    c0 = hn::MulAdd(c0, a, b);
    c1 = hn::MulAdd(c1, a, b);
    c2 = hn::MulAdd(c2, a, b);
    c3 = hn::MulAdd(c3, a, b);
    c4 = hn::MulAdd(c4, a, b);
    c5 = hn::MulAdd(c5, a, b);
    c6 = hn::MulAdd(c6, a, b);
    c7 = hn::MulAdd(c7, a, b);
    c8 = hn::MulAdd(c8, a, b);
    c9 = hn::MulAdd(c9, a, b);
    c10 = hn::MulAdd(c10, a, b);
    c11 = hn::MulAdd(c11, a, b);
  }
  c0 = hn::Add(hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)), hn::Add(hn::Add(c4, c5), c6));
  c7 = hn::Add(hn::Add(hn::Add(c7, c8), hn::Add(c9, c10)), c11);
  *sink = hn::GetLane(hn::SumOfLanes(d, hn::Add(c0, c7)));
  return static_cast<double>(rounds) * 12 * 2 * static_cast<double>(hn::Lanes(d));
}

void stream_copy(const float* from, float* to, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i + lanes <= n; i += lanes) hn::Stream(hn::Load(d, from + i), d, to + i);
  hwy::FlushStream();
}

// Four sums hide the latency of additions.
float stream_read(const float* from, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (int64_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, hn::Load(d, from + i));
    s1 = hn::Add(s1, hn::Load(d, from + i + lanes));
    s2 = hn::Add(s2, hn::Load(d, from + i + 2 * lanes));
    s3 = hn::Add(s3, hn::Load(d, from + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

void stream_mixed(const float* a, float* b, float* c, float* e, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i + lanes <= n; i += lanes) {
    const auto va = hn::Load(d, a + i), vb = hn::Load(d, b + i), vc = hn::Load(d, c + i);
    const auto ve = hn::Load(d, e + i);
    hn::Store(va, d, b + i);
    hn::Store(vb, d, c + i);
    hn::Store(hn::Or(vc, ve), d, e + i);  // bits alone: no slow subnormals
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ds::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds::bench {
namespace {

HWY_EXPORT(fma_loop);
HWY_EXPORT(stream_copy);
HWY_EXPORT(stream_read);
HWY_EXPORT(stream_mixed);

// The operands are random numbers: with zeros the tiles draw less power, and the rate that they
// show is one that no product reaches.
__attribute__((target("amx-tile,amx-bf16"))) double amx_loop(int64_t rounds) {
  const kernels::AmxTiles tiles;
  alignas(64) uint16_t values[4][512];
  uint32_t state = 1;
  for (auto& tile : values) {
    for (uint16_t& value : tile) {
      state = state * 1664525u + 1013904223u;
      constexpr uint16_t kHalf = 0x3F00;  // and up to 1, of either sign
      value = static_cast<uint16_t>((state >> 31 << 15) | kHalf | (state >> 24 & 0x7F));
    }
  }
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, values[0], 64);
  _tile_loadd(5, values[1], 64);
  _tile_loadd(6, values[2], 64);
  _tile_loadd(7, values[3], 64);
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return static_cast<double>(rounds) * 4 * 16 * 16 * 32 * 2;
}

__attribute__((target("avx512f,avx512bf16"))) double dot_loop(int64_t rounds, float* sink) {
  const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3C003C00);
  __m512 c[12];
  for (__m512& sum : c) sum = _mm512_setzero_ps();
  __m512 c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3], c4 = c[4], c5 = c[5], c6 = c[6], c7 = c[7],
         c8 = c[8], c9 = c[9], c10 = c[10], c11 = c[11];
  for (int64_t i = 0; i < rounds; ++i) {
    c0 = _mm512_dpbf16_ps(c0, a, a);
    c1 = _mm512_dpbf16_ps(c1, a, a);
    c2 = _mm512_dpbf16_ps(c2, a, a);
    c3 = _mm512_dpbf16_ps(c3, a, a);
    c4 = _mm512_dpbf16_ps(c4, a, a);
    c5 = _mm512_dpbf16_ps(c5, a, a);
    c6 = _mm512_dpbf16_ps(c6, a, a);
    c7 = _mm512_dpbf16_ps(c7, a, a);
    c8 = _mm512_dpbf16_ps(c8, a, a);
    c9 = _mm512_dpbf16_ps(c9, a, a);
    c10 = _mm512_dpbf16_ps(c10, a, a);
    c11 = _mm512_dpbf16_ps(c11, a, a);
  }
  const __m512 all = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9 + c10 + c11;
  *sink = all[0];
  return static_cast<double>(rounds) * 12 * 16 * 2 * 2;
}

// Memory in huge pages where the system gives them, touched.
class Buffer {
 public:
  explicit Buffer(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    constexpr size_t kHugePage = size_t{2} << 20;
    data_ = std::aligned_alloc(kHugePage, bytes_);
    if (data_ == nullptr) return;
    madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memset(data_, 1, bytes_);
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* data() const { return static_cast<float*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Best rate of several short tries with every thread busy; `work` returns what it did.
double best_rate(ThreadPool& pool, const std::function<double(int)>& work) {
  double best = 0;
  for (int attempt = 0; attempt < 6; ++attempt) {
    std::unique_ptr<double[]> done(new double[static_cast<size_t>(pool.threads())]());
    const double start = seconds();
    pool.run(pool.threads(), [&](int64_t i) { done[static_cast<size_t>(i)] = work(int(i)); });
    const double elapsed = seconds() - start;
    double total = 0;
    for (int i = 0; i < pool.threads(); ++i) total += done[static_cast<size_t>(i)];
    best = std::max(best, total / elapsed);
  }
  return best;
}

}  // namespace

Limits measure_limits(ThreadPool& pool) {
  Limits limits;
  volatile float sink = 0;
  limits.fp32_flops = best_rate(pool, [&](int) {
    float sum = 0;
    const double flops = HWY_DYNAMIC_DISPATCH(fma_loop)(2'000'000, &sum);
    sink = sum;
    return flops;
  });
  limits.bf16_flops = limits.fp32_flops;
  if (kernels::cpu_features().amx_bf16) {
    limits.bf16_flops = best_rate(pool, [](int) { return amx_loop(1'000'000); });
  } else if (kernels::cpu_features().avx512_bf16) {
    limits.bf16_flops = best_rate(pool, [&](int) {
      float sum = 0;
      const double flops = dot_loop(2'000'000, &sum);
      sink = sum;
      return flops;
    });
  }

  constexpr int64_t kFloats = int64_t{64} << 20;  // 256 MB each
  const Buffer from(kFloats * 4), to(kFloats * 4);
  if (from.data() == nullptr || to.data() == nullptr) return limits;
  const int64_t share = kFloats / pool.threads() / 1024 * 1024;
  const double moved = static_cast<double>(share) * 8;
  limits.copy = best_rate(pool, [&](int i) {
    // Short pieces, so that memcpy does not switch to non-temporal stores itself.
    for (int64_t at = 0; at < share; at += 16384) {
      std::memcpy(to.data() + i * share + at, from.data() + i * share + at,
                  static_cast<size_t>(std::min<int64_t>(16384, share - at)) * 4);
    }
    return moved;
  });
  limits.stream_copy = best_rate(pool, [&](int i) {
    HWY_DYNAMIC_DISPATCH(stream_copy)(from.data() + i * share, to.data() + i * share, share);
    return moved;
  });
  limits.read = best_rate(pool, [&](int i) {
    sink = HWY_DYNAMIC_DISPATCH(stream_read)(from.data() + i * share, share);
    return moved / 2;
  });
  limits.mixed = best_rate(pool, [&](int i) {
    float *const a = from.data() + i * share, *const c = to.data() + i * share;
    const int64_t half = share / 2;
    HWY_DYNAMIC_DISPATCH(stream_mixed)(a, a + half, c, c + half, half);
    return static_cast<double>(half) * 7 * 4;
  });
  return limits;
}

std::string limits_text(const Limits& limits) {
  char text[256];
  std::snprintf(text, sizeof(text),
                "fp32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, read %.1f GB/s, copy %.1f GB/s, streaming "
                "copy %.1f GB/s, mixed %.1f GB/s",
                limits.fp32_flops * 1e-9, limits.bf16_flops * 1e-9, limits.read * 1e-9,
                limits.copy * 1e-9, limits.stream_copy * 1e-9, limits.mixed * 1e-9);
  return text;
}

}  // namespace ds::bench
#endif  // HWY_ONCE
