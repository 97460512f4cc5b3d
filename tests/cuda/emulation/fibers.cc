// Runs the blocks of a kernel: every thread of a block runs until it ends or waits at a barrier, on
// a stack of its own from where it first waits. Warps run one after another between barriers of the
// block. A thread that waits gives way to the next of its warp directly, and one that ends leaves
// it the stack: most of the time of an emulated kernel would be such switches.
#include <boost/context/detail/fcontext.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <cuda_runtime.h>

#include "cuda/emulation/stand_in.h"

constinit thread_local uint3 threadIdx;
constinit thread_local uint3 blockIdx;
constinit thread_local dim3 blockDim;
constinit thread_local dim3 gridDim;

namespace emulation {
namespace {

namespace context = boost::context;
using context::detail::fcontext_t;
using context::detail::jump_fcontext;
using context::detail::transfer_t;

constexpr size_t kStackBytes = 128 << 10;
// Stacks that begin at equal distances share a few sets of the CPU's caches. Their beginnings are
// therefore moved, each by nine cache lines more than the one before, over as much as the sets
// cover.
constexpr size_t kShiftStep = 9 * 64, kMostShift = 64 << 10;
constexpr unsigned kLanes = 32;

// The stacks of a program, of which threads take some for as long as they run. Memory that has been
// touched once is worth keeping: engines and ranks of tests start threads again and again.
class AllStacks {
 public:
  context::stack_context take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return make();
    const context::stack_context stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void give(std::span<const context::stack_context> stacks) noexcept {
    const std::lock_guard lock(mutex_);
    free_.insert(free_.end(), stacks.begin(), stacks.end());
  }

 private:
  context::stack_context make() {
    const size_t shift = made_++ * kShiftStep % kMostShift;
    free_.reserve(made_);
    context::stack_context stack = source_.allocate();
    stack.sp = static_cast<char*>(stack.sp) - shift;
    stack.size -= shift;
    return stack;
  }

  std::mutex mutex_;
  context::fixedsize_stack source_{kStackBytes + kMostShift};
  size_t made_ = 0;
  std::vector<context::stack_context> free_;
};

// Lasts longer than any thread, and so until the process ends.
AllStacks& all_stacks() {
  static AllStacks& stacks = *new AllStacks;
  return stacks;
}

// A thread's stacks are used again, the last one first: a kernel has many short fibers.
class StackPool {
 public:
  ~StackPool() { all_stacks().give(free_); }
  context::stack_context allocate() {
    if (free_.empty()) {
      free_.reserve(++count_);
      return all_stacks().take();
    }
    const context::stack_context stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void deallocate(context::stack_context& stack) noexcept { free_.push_back(stack); }

 private:
  size_t count_ = 0;  // taken
  std::vector<context::stack_context> free_;
};

StackPool& stacks() {
  static thread_local StackPool pool;
  return pool;
}

enum class State { kReady, kAtExchange, kAtBarrier, kDone };

struct Thread {
  fcontext_t context = nullptr;  // where it goes on; null before its first turn
  context::stack_context stack;
  State state = State::kReady;
  unsigned mask = 0;           // of the exchange it waits at,
  const void* mine = nullptr;  // what it brings, and
  size_t size = 0;
  Together together = nullptr;
  size_t found = 0;  // where in its warp's `results` the lanes' contributions are
  uint3 index{};
};

struct Warp {
  std::vector<unsigned char> results;  // of the exchanges that the lanes which run now have made
  size_t used = 0;                     // bytes of it
};

struct Block {
  const std::function<void()>* body = nullptr;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  fcontext_t scheduler = nullptr, ended = nullptr;
  unsigned current = 0;
  unsigned last = 0;  // of the warp that runs
};

thread_local Block* t_block = nullptr;
thread_local std::vector<unsigned char> t_shared;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulated kernel: %s (block %u %u, thread %u)\n", what, blockIdx.x,
               blockIdx.y, threadIdx.x);
  std::abort();
}

// Goes to `target`; `*left` will hold where to come back to.
void go(fcontext_t target, fcontext_t* left) {
  const transfer_t back = jump_fcontext(target, left);
  *static_cast<fcontext_t*>(back.data) = back.fctx;
}

// The first thread from `index` on, in the warp that runs, whose turn it is; `last` for none.
unsigned next_ready(const Block& block, unsigned index) {
  while (index < block.last && block.threads[index].state != State::kReady) ++index;
  return index;
}

Thread& take_turn(Block& block, unsigned index) {
  block.current = index;
  threadIdx = block.threads[index].index;
  return block.threads[index];
}

// What a stack begins with: the bodies of one thread or, where they end, of those after it.
void begin(transfer_t from) {
  *static_cast<fcontext_t*>(from.data) = from.fctx;
  Block& block = *t_block;
  for (;;) {
    (*block.body)();
    Thread& done = block.threads[block.current];
    done.state = State::kDone;
    const unsigned next = next_ready(block, block.current + 1);
    if (next < block.last && block.threads[next].context == nullptr) {
      take_turn(block, next).stack = done.stack;
      continue;
    }
    stacks().deallocate(done.stack);
    fcontext_t target = block.scheduler;
    if (next < block.last) target = take_turn(block, next).context;
    jump_fcontext(target, &block.ended);
  }
}

// Gives `index` its turn; `*left` will hold where the caller goes on.
void run(Block& block, unsigned index, fcontext_t* left) {
  Thread& thread = take_turn(block, index);
  fcontext_t target = thread.context;
  if (target == nullptr) {
    thread.stack = stacks().allocate();
    target = context::detail::make_fcontext(thread.stack.sp, thread.stack.size, begin);
  }
  go(target, left);
}

void give_way(State state) {
  Block& block = *t_block;
  Thread& thread = block.threads[block.current];
  thread.state = state;
  const unsigned next = next_ready(block, block.current + 1);
  if (next < block.last) {
    run(block, next, &thread.context);
  } else {
    go(block.scheduler, &thread.context);
  }
}

// The sizes that most exchanges have are copied by a few instructions in place of a call.
void copy_slot(unsigned char* to, const void* from, size_t size) {
  if (size == 4) {
    std::memcpy(to, from, 4);
  } else if (size == 8) {
    std::memcpy(to, from, 8);
  } else if (size == 64) {
    std::memcpy(to, from, 64);
  } else {
    std::memcpy(to, from, size);
  }
}

// Whether all lanes of `waiting`'s exchange are there. Those that have ended are not waited for.
bool is_complete(const Block& block, const Thread& waiting, unsigned first, unsigned last) {
  for (unsigned i = first; i < last; ++i) {
    const Thread& other = block.threads[i];
    if ((waiting.mask >> (i - first) & 1u) == 0 || other.state == State::kDone) continue;
    if (other.state != State::kAtExchange || other.mask != waiting.mask) return false;
  }
  return true;
}

// Lets the lanes of `waiting`'s exchange go on, with what each of them brought.
void release(Block& block, const Thread& waiting, unsigned first, unsigned last) {
  Warp& warp = block.warps[first / kLanes];
  const unsigned mask = waiting.mask;
  const size_t size = waiting.size, found = warp.used;
  const Together together = waiting.together;
  warp.used += kLanes * size;
  if (warp.results.size() < warp.used) warp.results.resize(warp.used);
  unsigned char* const slots = warp.results.data() + found;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    unsigned char* const slot = slots + lane * size;
    Thread* const other = first + lane < last ? &block.threads[first + lane] : nullptr;
    if (other == nullptr || (mask >> lane & 1u) == 0 || other->state != State::kAtExchange) {
      std::memset(slot, 0, size);
      continue;
    }
    if (other->size != size) die("lanes exchange values of different sizes");
    copy_slot(slot, other->mine, size);
    other->found = found;
    other->state = State::kReady;
  }
  if (together != nullptr) together(slots);
}

// Lets the lanes go on whose exchange is complete.
bool release_exchanges(Block& block, unsigned first, unsigned last) {
  bool any = false;
  block.warps[first / kLanes].used = 0;
  for (unsigned i = first; i < last; ++i) {
    const Thread& waiting = block.threads[i];
    if (waiting.state != State::kAtExchange || !is_complete(block, waiting, first, last)) continue;
    any = true;
    release(block, waiting, first, last);
  }
  return any;
}

void run_warp(Block& block, unsigned first, unsigned last) {
  block.last = last;
  for (bool moved = true; moved;) {
    const unsigned next = next_ready(block, first);
    moved = next < last;
    if (moved) run(block, next, &block.scheduler);
    moved = release_exchanges(block, first, last) || moved;
  }
}

void run_block(const std::function<void()>& body, dim3 shape) {
  Block block;
  block.body = &body;
  const unsigned count = shape.x * shape.y * shape.z;
  block.threads.resize(count);
  block.warps.resize((count + kLanes - 1) / kLanes);
  Block* const outer = t_block;
  t_block = &block;
  for (unsigned i = 0; i < count; ++i) {
    block.threads[i].index = {i % shape.x, i / shape.x % shape.y, i / (shape.x * shape.y)};
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

const unsigned char* exchange(unsigned mask, const void* mine, size_t size, Together together) {
  Block& block = *t_block;
  const unsigned current = block.current;
  Thread& thread = block.threads[current];
  if ((mask >> (current % kLanes) & 1u) == 0) die("a lane outside its own mask");
  thread.mask = mask;
  thread.mine = mine;
  thread.size = size;
  thread.together = together;
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
