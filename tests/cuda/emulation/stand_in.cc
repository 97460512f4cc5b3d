#include "cuda/emulation/stand_in.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "cuda/emulation/stand_in_world.h"
#include "full_run.h"

namespace ds::testing::stand_in {

World& world() {
  static World it;
  return it;
}

namespace {

// A cuBLASLt of this machine could not use the stand-in's streams; programs may name another.
[[maybe_unused]] const int g_cublaslt_off = ::setenv("DS_CUBLASLT_LIBRARY", "off", 0);

CUctx_st g_primary[kMostGpus] = {{0}, {1}, {2}, {3}};
CUctx_st g_foreign = {-1};
thread_local CUcontext t_context = nullptr;
thread_local cudaError_t t_last_error = cudaSuccess;

}  // namespace

cudaError_t done(cudaError_t status) {
  if (status != cudaSuccess) t_last_error = status;
  return status;
}

bool take_failure(const char* call, cudaError_t* status) {
  auto& waiting = world().failures[call];
  if (waiting.empty()) return false;
  *status = waiting.front();
  waiting.pop_front();
  return *status != cudaSuccess;
}

void violate(const std::string& text) { world().violations.push_back(text); }

int gpu_of(const char* call) {
  if (t_context == nullptr || t_context->gpu < 0) {
    violate(std::string(call) + " without a GPU of the runtime being current");
    world().created[0] = true;
    return 0;
  }
  ++world().calls[t_context->gpu];
  return t_context->gpu;
}

namespace {

// False when the next work cannot begin yet.
bool run_one(Queue& queue) {
  if (queue.work.front().ready && !queue.work.front().ready()) return false;
  Work work = std::move(queue.work.front());
  queue.work.pop_front();
  if (work.run) work.run();
  return true;
}

// Goes on as far as it can; true when the mark was reached.
bool advance(const Mark& mark) {
  while (!mark.done && run_one(*mark.queue)) {
  }
  return mark.done;
}

// What it waits for comes from other threads, which need the stand-in.
template <class Done>
void let_others(const Done& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return violate("a wait without end");
    world().mutex.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    world().mutex.lock();
  }
}

void drain(Queue& queue) {
  let_others([&] {
    while (!queue.work.empty() && run_one(queue)) {
    }
    return queue.work.empty();
  });
}

void finish(const Mark& mark) {
  let_others([&] { return advance(mark); });
}

using Blocks = std::map<char*, Block>;

const Blocks::value_type* block_of(const void* pointer, Blocks& blocks = world().blocks) {
  auto after = blocks.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
  if (after == blocks.begin()) return nullptr;
  --after;
  return static_cast<const char*>(pointer) < after->first + after->second.size ? &*after : nullptr;
}

// Host memory that is not locked: CUDA may let the host wait for copies from and to it.
bool pageable(const void* pointer) {
  return block_of(pointer) == nullptr && block_of(pointer, world().pinned) == nullptr;
}

// Memory of a GPU must hold all the bytes; what is not a GPU's is the host's.
bool fits(const void* pointer, size_t count) {
  const auto* const block = block_of(pointer);
  if (block == nullptr) return true;
  return static_cast<const char*>(pointer) + count <= block->first + block->second.size;
}

// cudaMalloc on the calling thread's GPU; `front` more bytes lie before the block.
cudaError_t make_block(int gpu, void** block, size_t size, size_t front) {
  for (const cudaStream_t stream : world().streams) {
    if (stream->capture != nullptr && !stream->capture->relaxed) return invalidate_capture(stream);
  }
  const auto bytes = static_cast<int64_t>(size);
  if (bytes > world().bytes_each - world().used[gpu]) return done(cudaErrorMemoryAllocation);
  auto* const base = static_cast<char*>(std::aligned_alloc(256, front + (size + 255) / 256 * 256));
  std::memset(base, 0xA5, front + size);
  world().used[gpu] += bytes;
  world().blocks[base + front] = {gpu, bytes, base};
  *block = base + front;
  return cudaSuccess;
}

}  // namespace
}  // namespace ds::testing::stand_in

using namespace ds::testing::stand_in;  // NOLINT: the calls are the stand-in's

extern "C" {

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = world().driver_version;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  const Lock lock(world().mutex);
  cudaError_t asked = cudaSuccess;
  *count = 0;
  if (take_failure("cudaGetDeviceCount", &asked)) return done(asked);
  *count = world().gpus;
  return world().gpus > 0 ? cudaSuccess : done(cudaErrorNoDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int index) {
  const Lock lock(world().mutex);
  cudaError_t asked = cudaSuccess;
  if (take_failure("cudaGetDeviceProperties", &asked)) return done(asked);
  std::strncpy(found->name, "Stand-in", sizeof found->name - 1);
  found->uuid.bytes[15] = static_cast<char>(0xa0 + index);
  found->totalGlobalMem = static_cast<size_t>(world().bytes_each);
  found->major = 9;
  found->minor = 0;
  found->multiProcessorCount = 1 + index;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorInitializationError:
      return "cudaErrorInitializationError";
    case cudaErrorDevicesUnavailable:
      return "cudaErrorDevicesUnavailable";
    default:
      return "cudaErrorOther";
  }
}

const char* cudaGetErrorString(cudaError_t) { return "as the stand-in was told"; }

cudaError_t cudaGetLastError() { return std::exchange(t_last_error, cudaSuccess); }

static CUresult stand_in_get(CUcontext* context) {
  *context = t_context;
  return CUDA_SUCCESS;
}

static CUresult stand_in_set(CUcontext context) {
  t_context = context;
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** call, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* answer) {
  *call = nullptr;
  *answer = cudaDriverEntryPointSymbolNotFound;
  if (!world().driver_calls) return cudaSuccess;
  if (std::strcmp(symbol, "cuCtxGetCurrent") == 0) *call = reinterpret_cast<void*>(&stand_in_get);
  if (std::strcmp(symbol, "cuCtxSetCurrent") == 0) *call = reinterpret_cast<void*>(&stand_in_set);
  if (*call != nullptr) *answer = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* index) {
  STAND_IN_BEGIN(cudaGetDevice);
  *index = gpu;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
  const Lock lock(world().mutex);
  cudaError_t asked = cudaSuccess;
  if (take_failure("cudaSetDevice", &asked)) return done(asked);
  if (index < 0 || index >= world().gpus) return done(cudaErrorInvalidDevice);
  world().created[index] = true;
  t_context = &g_primary[index];
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** block, size_t size) {
  STAND_IN_BEGIN(cudaMalloc);
  return make_block(gpu, block, size, 0);
}

// All memory here is the host's. Of this kind it begins inside what std::free takes, which a test
// that gives it back to the host instead of CUDA does not survive.
cudaError_t cudaMallocManaged(void** block, size_t size, unsigned) {
  STAND_IN_BEGIN(cudaMallocManaged);
  return make_block(gpu, block, size, 256);
}

cudaError_t cudaFree(void* block) {
  STAND_IN_BEGIN(cudaFree);
  const auto found = world().blocks.find(static_cast<char*>(block));
  if (found == world().blocks.end()) {
    violate("cudaFree of what cudaMalloc did not give");
    return done(cudaErrorInvalidValue);
  }
  if (invalidate_captures(found->second.gpu, "cudaFree")) {
    return done(cudaErrorStreamCaptureUnsupported);
  }
  for (const cudaGraphExec_t graph : world().executables) {
    for (const Work& work : graph->nodes) {
      if (block_of(work.target) == &*found || block_of(work.source) == &*found) {
        violate("cudaFree of memory that a graph uses");
      }
    }
  }
  std::vector<std::shared_ptr<Queue>> queues;
  for (const cudaStream_t stream : world().streams) {
    for (const Work& work : stream->queue->work) {
      if (block_of(work.target) == &*found || block_of(work.source) == &*found) {
        violate("cudaFree of memory that queued work uses");
      }
    }
    if (stream->gpu == found->second.gpu) queues.push_back(stream->queue);
  }
  queues.push_back(world().legacy[found->second.gpu]);
  for (const auto& queue : queues) drain(*queue);  // other threads may come in between
  ++world().waits;
  world().used[found->second.gpu] -= found->second.size;
  std::free(found->second.base);
  world().blocks.erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** block, size_t size, unsigned flags) {
  STAND_IN_BEGIN(cudaHostAlloc);
  if (invalidate_captures(gpu, "cudaHostAlloc")) return done(cudaErrorStreamCaptureUnsupported);
  if (flags != cudaHostAllocPortable) violate("pinned memory that only one GPU reaches");
  auto* const memory = static_cast<char*>(std::aligned_alloc(4096, (size + 4095) / 4096 * 4096));
  std::memset(memory, 0xA5, size);
  world().pinned[memory] = {gpu, static_cast<int64_t>(size)};
  *block = memory;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* block) {
  STAND_IN_BEGIN(cudaFreeHost);
  if (invalidate_captures(gpu, "cudaFreeHost")) return done(cudaErrorStreamCaptureUnsupported);
  const auto found = world().pinned.find(static_cast<char*>(block));
  if (found == world().pinned.end()) {
    violate("cudaFreeHost of what cudaHostAlloc did not give");
    return done(cudaErrorInvalidValue);
  }
  for (const cudaStream_t stream : world().streams) {
    for (const Work& work : stream->queue->work) {
      if (block_of(work.target, world().pinned) == &*found ||
          block_of(work.source, world().pinned) == &*found) {
        violate("cudaFreeHost of memory that queued work uses");
      }
    }
    drain(*stream->queue);
  }
  ++world().waits;
  std::free(found->first);
  world().pinned.erase(found);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  STAND_IN_BEGIN(cudaMemGetInfo);
  *total = static_cast<size_t>(world().bytes_each);
  *free_bytes = static_cast<size_t>(world().bytes_each - world().used[gpu]);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  STAND_IN_BEGIN(cudaStreamCreateWithFlags);
  if (flags != cudaStreamNonBlocking) violate("a blocking stream");
  *stream = *world().streams.insert(new CUstream_st{gpu}).first;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  STAND_IN_BEGIN(cudaStreamDestroy);
  STAND_IN_KNOWN(streams, stream);
  if (stream->capture != nullptr) violate("a stream that records work is destroyed");
  drain(*stream->queue);
  world().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  STAND_IN_BEGIN(cudaStreamSynchronize);
  if (stream ==
      nullptr) {  // CUDA's legacy stream: nothing but copies of cudaMemcpy is queued there
    drain(*world().legacy[gpu]);
    return cudaSuccess;
  }
  STAND_IN_KNOWN(streams, stream);
  if (stream->capture != nullptr) return invalidate_capture(stream);
  ++world().waits;
  drain(*stream->queue);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  STAND_IN_BEGIN(cudaStreamWaitEvent);
  STAND_IN_KNOWN(streams, stream);
  STAND_IN_KNOWN(events, event);
  if (event->captured != nullptr) {
    if (event->captured == stream && stream->capture != nullptr) return cudaSuccess;
    violate("another stream joins what a stream records");  // CUDA allows it, the stand-in does not
    return done(cudaErrorStreamCaptureUnsupported);
  }
  if (stream->capture != nullptr)
    return invalidate_capture(stream, cudaErrorStreamCaptureIsolation);
  return submit(stream, {{}, nullptr, nullptr, [mark = event->mark] { return advance(*mark); }});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  STAND_IN_BEGIN(cudaEventCreateWithFlags);
  if ((flags & cudaEventDisableTiming) == 0) violate("an event that takes times");
  ++world().events_made;
  *event = *world().events.insert(new CUevent_st{gpu}).first;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  STAND_IN_BEGIN(cudaEventDestroy);
  STAND_IN_KNOWN(events, event);
  world().events.erase(event);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  STAND_IN_BEGIN(cudaEventRecord);
  STAND_IN_KNOWN(streams, stream);
  STAND_IN_KNOWN(events, event);
  if (event->gpu != stream->gpu) return done(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) {
    event->captured = stream;
    return cudaSuccess;
  }
  event->captured = nullptr;
  event->mark = std::make_shared<Mark>(Mark{stream->queue, false});
  return submit(stream, {[mark = event->mark, at = event->gpu] {
                  mark->done = true;
                  mark->at = world().clock[at];
                }});
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  STAND_IN_BEGIN(cudaEventQuery);
  STAND_IN_KNOWN(events, event);
  if (event->captured != nullptr) return done(cudaErrorCapturedEvent);
  if (world().go_on_when_asked) advance(*event->mark);
  return done(event->mark->done ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  STAND_IN_BEGIN(cudaEventSynchronize);
  STAND_IN_KNOWN(events, event);
  if (event->captured != nullptr) return done(cudaErrorCapturedEvent);
  ++world().waits;
  finish(*event->mark);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  STAND_IN_BEGIN(cudaMemcpyAsync);
  ++world().handed.copies;
  STAND_IN_KNOWN(streams, stream);
  if (kind != cudaMemcpyDefault) violate("a copy that states its direction");
  if (!fits(target, count) || !fits(source, count)) return done(cudaErrorInvalidValue);
  if (pageable(target) || pageable(source)) {
    if (stream->capture != nullptr) return invalidate_capture(stream);
    ++world().waits;
  }
  return submit(stream, {[=] { std::memcpy(target, source, count); }, target, source});
}

cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                              size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  STAND_IN_BEGIN(cudaMemcpy2DAsync);
  ++world().handed.copies;
  STAND_IN_KNOWN(streams, stream);
  if (kind != cudaMemcpyDefault) violate("a copy that states its direction");
  if (width == 0 || height == 0) return cudaSuccess;
  if (target_pitch < width || source_pitch < width) return done(cudaErrorInvalidValue);
  if (!fits(target, (height - 1) * target_pitch + width) ||
      !fits(source, (height - 1) * source_pitch + width)) {
    return done(cudaErrorInvalidValue);
  }
  if (pageable(target) || pageable(source)) {
    if (stream->capture != nullptr) return invalidate_capture(stream);
    ++world().waits;
  }
  return submit(stream, {[=] {
                           for (size_t row = 0; row < height; ++row) {
                             std::memcpy(static_cast<char*>(target) + row * target_pitch,
                                         static_cast<const char*>(source) + row * source_pitch,
                                         width);
                           }
                         },
                         target, source});
}

cudaError_t cudaMemcpy(void* target, const void* source, size_t count, cudaMemcpyKind kind) {
  STAND_IN_BEGIN(cudaMemcpy);
  if (kind != cudaMemcpyDefault || !fits(target, count) || !fits(source, count)) {
    return done(cudaErrorInvalidValue);
  }
  for (const cudaStream_t stream : world().streams) {
    for (const Work& work : stream->queue->work) {
      for (const void* const used : {work.target, work.source}) {
        const auto* const block = block_of(used);
        if (block != nullptr && (block == block_of(target) || block == block_of(source))) {
          violate("cudaMemcpy of memory that queued work uses");
        }
      }
    }
  }
  // Between two places of GPUs it returns before the copy has ended, and streams that are
  // non-blocking do not wait for it.
  Queue& legacy = *world().legacy[gpu];
  if (block_of(target) != nullptr && block_of(source) != nullptr) {
    legacy.work.push_back({[=] { std::memcpy(target, source, count); }, target, source});
    return cudaSuccess;
  }
  // From pageable memory it returns when all has been read, which may be before all is there.
  if (block_of(target) != nullptr && pageable(source)) {
    const auto* const first = static_cast<const char*>(source);
    legacy.work.push_back({[target, read = std::vector<char>(first, first + count)] {
                             std::memcpy(target, read.data(), read.size());
                           },
                           target});
    return cudaSuccess;
  }
  drain(legacy);
  ++world().waits;
  std::memcpy(target, source, count);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* pointer) {
  STAND_IN_BEGIN(cudaPointerGetAttributes);
  *found = {};
  if (const auto* const block = block_of(pointer)) {
    found->type = cudaMemoryTypeDevice;
    found->device = block->second.gpu;
  } else if (block_of(pointer, world().pinned) != nullptr) {
    found->type = cudaMemoryTypeHost;
  }
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t count, cudaStream_t stream) {
  STAND_IN_BEGIN(cudaMemsetAsync);
  ++world().handed.copies;
  STAND_IN_KNOWN(streams, stream);
  if (block_of(target) == nullptr || !fits(target, count)) return done(cudaErrorInvalidValue);
  return submit(stream, {[=] { std::memset(target, value, count); }, target});
}

}  // extern "C"

namespace ds::testing::stand_in {

void reset(int gpus, int64_t bytes_each) {
  World& w = world();
  const Lock lock(w.mutex);
  for (const cudaStream_t stream : w.streams) {
    stream->queue->work.clear();  // queue and marks hold each other
    delete stream;
  }
  for (const cudaEvent_t event : w.events) delete event;
  for (const cudaGraph_t graph : w.graphs) delete graph;
  for (const cudaGraphExec_t executable : w.executables) delete executable;
  w.graphs.clear();
  w.executables.clear();
  for (const auto& [memory, block] : w.blocks) std::free(block.base);
  for (const auto& [memory, block] : w.pinned) std::free(memory);
  w.streams.clear();
  w.events.clear();
  w.blocks.clear();
  w.pinned.clear();
  w.failures.clear();
  w.violations.clear();
  w.gpus = gpus;
  w.bytes_each = bytes_each;
  w.driver_version = CUDART_VERSION;
  w.driver_calls = true;
  w.go_on_when_asked = false;
  w.waits = 0;
  w.launches = 0;
  w.events_made = 0;
  w.handed = {};
  for (const auto& queue : w.legacy) queue->work.clear();
  for (int i = 0; i < kMostGpus; ++i) {
    w.used[i] = 0;
    w.calls[i] = 0;
    w.created[i] = false;
  }
  t_context = nullptr;
  t_last_error = cudaSuccess;
}

cudaError_t queue_work(cudaStream_t stream, std::function<bool()> ready,
                       std::function<void()> run) {
  STAND_IN_BEGIN(cudaLaunchKernel);
  STAND_IN_KNOWN(streams, stream);
  if (gpu != stream->gpu) return done(cudaErrorInvalidResourceHandle);
  return submit(stream, {std::move(run), nullptr, nullptr, std::move(ready)});
}

cudaError_t queue_kernel(cudaStream_t stream, std::function<void()> run) {
  {
    const Lock lock(world().mutex);
    ++world().handed.kernels;
  }
  return queue_work(stream, {}, std::move(run));
}

void go_on_when_asked() { world().go_on_when_asked = true; }

void fail_next(const std::string& call, cudaError_t status) {
  const Lock lock(world().mutex);
  world().failures[call].push_back(status);
}

void fail_after(const std::string& call, int good, cudaError_t status) {
  for (int i = 0; i < good; ++i) fail_next(call, cudaSuccess);
  fail_next(call, status);
}

int fail_no_more() {
  const Lock lock(world().mutex);
  size_t left = 0;
  for (const auto& [call, waiting] : world().failures) left += waiting.size();
  world().failures.clear();
  return static_cast<int>(left);
}

void set_driver_version(int version) { world().driver_version = version; }
void hide_driver_calls() { world().driver_calls = false; }

Live live() {
  const Lock lock(world().mutex);
  return {static_cast<int>(world().blocks.size()), static_cast<int>(world().streams.size()),
          static_cast<int>(world().events.size()), static_cast<int>(world().pinned.size()),
          static_cast<int>(world().graphs.size() + world().executables.size())};
}

int64_t graph_launches() {
  const Lock lock(world().mutex);
  return world().launches;
}

Handed handed() {
  const Lock lock(world().mutex);
  return world().handed;
}

int64_t events_made() {
  const Lock lock(world().mutex);
  return world().events_made;
}

int64_t host_waits() {
  const Lock lock(world().mutex);
  return world().waits;
}

std::vector<std::string> violations() {
  const Lock lock(world().mutex);
  return world().violations;
}

CUcontext current_context() { return t_context; }
void set_current_context(CUcontext context) { t_context = context; }
CUcontext foreign_context() { return &g_foreign; }
CUcontext primary_context(int gpu) { return &g_primary[gpu]; }
bool has_context(int gpu) { return world().created[gpu]; }
int current_gpu_calls(int gpu) { return world().calls[gpu]; }

}  // namespace ds::testing::stand_in

void ds::testing::gpus_are_emulated() {}
