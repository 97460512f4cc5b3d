// What the parts of the stand-in share: its handles and what it knows. Only for them.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/emulation/stand_in.h"

namespace ds::testing::stand_in {

struct Work {
  std::function<void()> run;
  const void* target = nullptr;
  const void* source = nullptr;
  std::function<bool()> ready = {};  // none: always
};

struct Queue {
  std::deque<Work> work;
};

struct Mark {  // what an event remembers: done when its queue has come that far
  std::shared_ptr<Queue> queue;
  bool done = true;
  double at = 0;  // the GPU's clock then
};

// What a stream records meanwhile instead of queueing it, in its order.
struct Capture {
  std::vector<Work> nodes;
  bool relaxed = false;
  bool valid = true;
  std::thread::id thread = std::this_thread::get_id();
};

}  // namespace ds::testing::stand_in

struct CUgraph_st {
  std::vector<ds::testing::stand_in::Work> nodes;
};
struct CUgraphExec_st {
  int gpu;
  std::vector<ds::testing::stand_in::Work> nodes;
};
struct CUctx_st {
  int gpu;  // -1: a context that the program made itself
};
struct CUstream_st {
  int gpu;
  std::shared_ptr<ds::testing::stand_in::Queue> queue =
      std::make_shared<ds::testing::stand_in::Queue>();
  std::unique_ptr<ds::testing::stand_in::Capture> capture = nullptr;  // while it records
};
struct CUevent_st {
  int gpu;
  std::shared_ptr<ds::testing::stand_in::Mark> mark =
      std::make_shared<ds::testing::stand_in::Mark>();
  bool timed = false;               // made to take times
  cudaStream_t captured = nullptr;  // recorded on this stream while that recorded work
};

namespace ds::testing::stand_in {

constexpr int kMostGpus = 4;

struct Block {
  int gpu;
  int64_t size;
  void* base = nullptr;  // what std::free takes
};

struct World {
  std::recursive_mutex mutex;
  int gpus = 2;
  int64_t bytes_each = int64_t{64} << 20;
  int driver_version = CUDART_VERSION;
  bool driver_calls = true;
  bool go_on_when_asked = false;
  int64_t used[kMostGpus] = {};
  int calls[kMostGpus] = {};
  int64_t waits = 0;     // of the host
  int64_t launches = 0;  // of graphs
  int64_t events_made = 0;
  Handed handed;
  double clock[kMostGpus] = {};  // seconds of work that said how long it takes
  bool created[kMostGpus] = {};
  std::map<char*, Block> blocks;
  std::map<char*, Block> pinned;  // the host's
  std::set<cudaStream_t> streams;
  // CUDA's legacy default streams, where cudaMemcpy works.
  std::array<std::shared_ptr<Queue>, kMostGpus> legacy{
      std::make_shared<Queue>(), std::make_shared<Queue>(), std::make_shared<Queue>(),
      std::make_shared<Queue>()};
  std::set<cudaEvent_t> events;
  std::set<cudaGraph_t> graphs;
  std::set<cudaGraphExec_t> executables;
  std::map<std::string, std::deque<cudaError_t>> failures;
  // What kernels were allowed beyond 48 KiB, by GPU. It stays when all else is forgotten: a context
  // lasts as long as its program.
  std::map<std::pair<int, const void*>, size_t> dynamic_shared;
  std::vector<std::string> violations;
};

World& world();

using Lock = std::lock_guard<std::recursive_mutex>;

// The result of a call, which the runtime remembers if it is an error.
cudaError_t done(cudaError_t status);
bool take_failure(const char* call, cudaError_t* status);
void violate(const std::string& text);
// The GPU on which a call works. Without a current context CUDA would create one on GPU 0.
int gpu_of(const char* call);

// Queues work, or records it.
cudaError_t submit(cudaStream_t stream, Work work);
// For calls that a stream which records work does not allow: what it recorded is lost.
cudaError_t invalidate_capture(cudaStream_t stream,
                               cudaError_t status = cudaErrorStreamCaptureUnsupported);
// The same for calls that concern a whole GPU; true when it recorded.
bool invalidate_captures(int gpu, const char* call);

}  // namespace ds::testing::stand_in

// Each call: a failure that was asked for, a current GPU, known handles.
#define STAND_IN_BEGIN(name)                           \
  const Lock lock(world().mutex);                      \
  cudaError_t asked = cudaSuccess;                     \
  if (take_failure(#name, &asked)) return done(asked); \
  [[maybe_unused]] const int gpu = gpu_of(#name)
#define STAND_IN_KNOWN(set, handle) \
  if (world().set.count(handle) == 0) return done(cudaErrorInvalidResourceHandle)
