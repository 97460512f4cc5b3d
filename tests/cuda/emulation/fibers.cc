// Runs the blocks of a kernel: every thread of a block is a fiber that runs until it ends or waits
// at a barrier. Warps run one after another between barriers of the block.
#include <boost/context/continuation.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include <cuda_runtime.h>

#include "cuda/emulation/stand_in.h"

thread_local uint3 threadIdx;
thread_local uint3 blockIdx;
thread_local dim3 blockDim;
thread_local dim3 gridDim;

namespace emulation {
namespace {

namespace context = boost::context;

constexpr size_t kStackBytes = 128 << 10;
constexpr unsigned kLanes = 32;

// Stacks are used again: a kernel has many short fibers.
class StackPool {
 public:
  ~StackPool() {
    for (context::stack_context& stack : free_) source_.deallocate(stack);
  }
  context::stack_context allocate() {
    if (free_.empty()) return source_.allocate();
    const context::stack_context stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void deallocate(context::stack_context& stack) noexcept { free_.push_back(stack); }

 private:
  context::fixedsize_stack source_{kStackBytes};
  std::vector<context::stack_context> free_;
};

StackPool& stacks() {
  static thread_local StackPool pool;
  return pool;
}

struct PooledStack {
  context::stack_context allocate() const { return stacks().allocate(); }
  void deallocate(context::stack_context& stack) const noexcept { stacks().deallocate(stack); }
};

enum class State { kReady, kAtExchange, kAtBarrier, kDone };

struct Thread {
  context::continuation fiber;
  State state = State::kReady;
  unsigned mask = 0;           // of the exchange it waits at,
  const void* mine = nullptr;  // what it brings, and
  size_t size = 0;
  size_t found = 0;  // where in its warp's `results` the lanes' contributions are
  uint3 index{};
};

struct Warp {
  std::vector<unsigned char> results;  // of the exchanges that the lanes which run now have made
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  context::continuation scheduler;
  unsigned current = 0;
};

thread_local Block* t_block = nullptr;
thread_local std::vector<unsigned char> t_shared;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulated kernel: %s (block %u %u, thread %u)\n", what, blockIdx.x,
               blockIdx.y, threadIdx.x);
  std::abort();
}

void give_way(State state) {
  Block& block = *t_block;
  block.threads[block.current].state = state;
  block.scheduler = block.scheduler.resume();
}

void run(Block& block, unsigned index) {
  Thread& thread = block.threads[index];
  block.current = index;
  threadIdx = thread.index;
  thread.state = State::kReady;
  thread.fiber = thread.fiber.resume();
}

// Lets the lanes go on whose exchange is complete. Lanes that have ended are not waited for.
bool release_exchanges(Block& block, unsigned first, unsigned last) {
  bool any = false;
  std::vector<unsigned char>& results = block.warps[first / kLanes].results;
  results.clear();
  for (unsigned i = first; i < last; ++i) {
    const Thread& waiting = block.threads[i];
    if (waiting.state != State::kAtExchange) continue;
    bool complete = true;
    for (unsigned j = first; j < last && complete; ++j) {
      const Thread& other = block.threads[j];
      if ((waiting.mask >> (j - first) & 1u) == 0 || other.state == State::kDone) continue;
      complete = other.state == State::kAtExchange && other.mask == waiting.mask;
    }
    if (!complete) continue;
    any = true;
    const unsigned mask = waiting.mask;
    const size_t size = waiting.size, found = results.size();
    results.resize(found + kLanes * size);
    for (unsigned j = first; j < last; ++j) {
      Thread& other = block.threads[j];
      if ((mask >> (j - first) & 1u) == 0 || other.state != State::kAtExchange) continue;
      if (other.size != size) die("lanes exchange values of different sizes");
      std::memcpy(results.data() + found + (j - first) * size, other.mine, size);
      other.found = found;
      other.state = State::kReady;
    }
  }
  return any;
}

void run_warp(Block& block, unsigned first, unsigned last) {
  for (bool moved = true; moved;) {
    moved = false;
    for (unsigned i = first; i < last; ++i) {
      if (block.threads[i].state != State::kReady) continue;
      run(block, i);
      moved = true;
    }
    moved = release_exchanges(block, first, last) || moved;
  }
}

void run_block(const std::function<void()>& body, dim3 shape) {
  Block block;
  const unsigned count = shape.x * shape.y * shape.z;
  block.threads.resize(count);
  block.warps.resize((count + kLanes - 1) / kLanes);
  Block* const outer = t_block;
  t_block = &block;
  for (unsigned i = 0; i < count; ++i) {
    Thread& thread = block.threads[i];
    thread.index = {i % shape.x, i / shape.x % shape.y, i / (shape.x * shape.y)};
    thread.fiber = context::callcc(
        std::allocator_arg, PooledStack(), [&block, &body](context::continuation&& back) {
          block.scheduler = std::move(back);
          block.scheduler = block.scheduler.resume();  // wait for the first turn
          body();
          block.threads[block.current].state = State::kDone;
          return std::move(block.scheduler);
        });
  }
  for (;;) {
    for (unsigned first = 0; first < count; first += kLanes) {
      run_warp(block, first, std::min(count, first + kLanes));
    }
    unsigned done = 0, waiting = 0;
    for (const Thread& thread : block.threads) {
      done += thread.state == State::kDone ? 1 : 0;
      waiting += thread.state == State::kAtBarrier ? 1 : 0;
    }
    if (done == count) break;
    if (done + waiting != count) die("lanes wait for an exchange that others do not make");
    for (Thread& thread : block.threads) {
      if (thread.state == State::kAtBarrier) thread.state = State::kReady;
    }
  }
  t_block = outer;
}

void run_grid(const std::function<void()>& body, dim3 blocks, dim3 threads, size_t shared) {
  t_shared.assign(shared + 128, 0xA5);
  blockDim = threads;
  gridDim = blocks;
  for (unsigned z = 0; z < blocks.z; ++z) {
    for (unsigned y = 0; y < blocks.y; ++y) {
      for (unsigned x = 0; x < blocks.x; ++x) {
        blockIdx = {x, y, z};
        run_block(body, threads);
      }
    }
  }
}

}  // namespace

int lane() { return static_cast<int>(t_block->current % kLanes); }

void* shared_memory() {
  const auto at = reinterpret_cast<uintptr_t>(t_shared.data());
  return reinterpret_cast<void*>((at + 127) / 128 * 128);
}

void block_barrier() { give_way(State::kAtBarrier); }

const unsigned char* exchange(unsigned mask, const void* mine, size_t size) {
  Block& block = *t_block;
  const unsigned current = block.current;
  Thread& thread = block.threads[current];
  if ((mask >> (current % kLanes) & 1u) == 0) die("a lane outside its own mask");
  thread.mask = mask;
  thread.mine = mine;
  thread.size = size;
  give_way(State::kAtExchange);
  return block.warps[current / kLanes].results.data() + thread.found;
}

cudaError_t launch(const void* kernel, cudaStream_t stream, dim3 blocks, dim3 threads,
                   size_t shared, std::function<void()> body) {
  const uint64_t count = uint64_t{threads.x} * threads.y * threads.z;
  if (count == 0 || count > 1024 || blocks.x == 0) return cudaErrorInvalidConfiguration;
  if (shared > ds::testing::stand_in::most_dynamic_shared(kernel)) return cudaErrorInvalidValue;
  return ds::testing::stand_in::queue_kernel(stream,
                                             [body = std::move(body), blocks, threads, shared] {
                                               run_grid(body, blocks, threads, shared);
                                             });
}

}  // namespace emulation
