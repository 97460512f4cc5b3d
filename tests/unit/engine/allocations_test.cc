// What a warm training step asks of the heap: small records of tensors and closures, the same in
// every step. Buffers come from the arena, and a step that asked malloc for one would show here.
//
// This program replaces malloc, so it stands alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "engine_world.h"

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* pointer, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {

std::atomic<int64_t> requests{0}, total_bytes{0}, largest{0};

void note(size_t bytes) {
  const auto n = static_cast<int64_t>(bytes);
  requests.fetch_add(1, std::memory_order_relaxed);
  total_bytes.fetch_add(n, std::memory_order_relaxed);
  int64_t before = largest.load(std::memory_order_relaxed);
  while (n > before && !largest.compare_exchange_weak(before, n)) {
  }
}

}  // namespace

extern "C" {
void* malloc(size_t bytes) {
  note(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  note(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* pointer, size_t bytes) {
  note(bytes);
  return __libc_realloc(pointer, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  note(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  note(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  note(bytes);
  *out = __libc_memalign(alignment, bytes);
  return *out == nullptr ? 12 : 0;  // ENOMEM
}
}

namespace ds {
namespace {

using namespace engine_test;  // NOLINT: what these tests are about

struct Count {
  int64_t requests, bytes, largest;
};

// Of one warm step, the same in each of several. A worker makes scratch memory for products when it
// first gets a part of one, which on a busy machine may be late: up to two steps may differ by
// that.
Count warm_step(const Json& change, int64_t layers) {
  Json model = model_config();
  model["n_layer"] = layers;
  model["vocab_size"] = 4096;  // logits of 1 MiB
  model["n_embd"] = 64;
  Json config = with(base_config(), {{"gradient_accumulation_steps", 1}, {"threads", 2}});
  const auto engine = make_engine(with(config, change), model);
  const std::vector<int64_t> values(4 * 16, 3);
  const Tensor ids = ids_tensor(values, 4);
  const auto step = [&] {
    const int64_t count = requests, bytes = total_bytes;
    largest = 0;
    engine->backward(engine->forward({ids, ids, {}, {}, {}}));
    engine->step();
    return Count{requests - count, total_bytes - bytes, largest};
  };
  for (int i = 0; i < 3; ++i) step();
  std::vector<Count> steps;
  for (int i = 0; i < 8; ++i) steps.push_back(step());
  const Count least = *std::ranges::min_element(steps, {}, &Count::bytes);
  EXPECT_GE(std::ranges::count_if(steps,
                                  [&](const Count& one) {
                                    return one.requests == least.requests &&
                                           one.bytes == least.bytes;
                                  }),
            6);
  return least;
}

TEST(Allocations, TheCounterCounts) {
  const int64_t before = requests;
  auto* const volatile pointer = new int64_t[100];
  EXPECT_GT(requests, before);
  delete[] pointer;
}

TEST(Allocations, WarmStepsAskTheHeapForSmallRecordsOnly) {
  for (const bool bf16 : {false, true}) {
    SCOPED_TRACE(bf16);
    const Json change = {{"bf16", {{"enabled", bf16}}}};
    const Count two = warm_step(change, 2), six = warm_step(change, 6);
    const int64_t per_layer = (six.requests - two.requests) / 4;
    std::printf("%s: %lld requests and %lld bytes in a step of 2 layers, %lld more per layer\n",
                bf16 ? "bf16" : "fp32", static_cast<long long>(two.requests),
                static_cast<long long>(two.bytes), static_cast<long long>(per_layer));
    EXPECT_LT(six.largest, 16 << 10);
    EXPECT_LT(per_layer, 100);
    EXPECT_LT(two.requests, 300);
    EXPECT_LT(two.bytes, 64 << 10);
  }
}

}  // namespace
}  // namespace ds
