// A stand-in of the CUDA runtime for machines without a GPU: the calls that src/device uses, on
// host memory. It shows that they are made in the right order with the right arguments; it is no
// GPU.
//
// Work is queued and runs only when something waits for it (or asks, see go_on_when_asked), so a
// missing wait is seen as wrong bytes. What CUDA would punish (or forgive by luck) is written down
// as a violation.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

// Also for libraries that a test opens.
#pragma GCC visibility push(default)
namespace ds::testing::stand_in {

// Forgets everything and shows `gpus` GPUs.
void reset(int gpus, int64_t bytes_each = int64_t{64} << 20);
// Of the next calls of that name (each given once, in order); cudaSuccess: that one works.
void fail_next(const std::string& call, cudaError_t status);
// One call fails, after so many that work.
void fail_after(const std::string& call, int good, cudaError_t status);
// Forgets failures that did not come; returns how many calls they were waiting for.
int fail_no_more();
void set_driver_version(int version);
// Takes the driver's calls away.
void hide_driver_calls();

// What emulation::launch does: the kernel runs in the order of its stream.
cudaError_t queue_kernel(cudaStream_t stream, std::function<void()> run);

// Bytes of shared memory that a kernel declares.
size_t static_shared(const void* kernel);
// Bytes that a launch on the current GPU may add to them.
size_t most_dynamic_shared(const void* kernel);

// Work that begins when `ready` says so; asked again and again once the work before it is over.
// Streams wait, and so does whoever waits for them. Both are called with the stand-in locked.
cudaError_t queue_work(cudaStream_t stream, std::function<bool()> ready, std::function<void()> run);
// For work that runs: it takes so long, as events that take times see it.
void take_time(int gpu, double seconds);
// Asking for an event lets the work before it go on, as it would on a GPU.
void go_on_when_asked();

struct Live {
  int blocks = 0;
  int streams = 0;
  int events = 0;
  int pinned = 0;
  int graphs = 0;  // recorded or ready to be launched
  bool operator==(const Live&) const = default;
};
Live live();
// Calls so far that let the host wait for a GPU, or might: synchronisations, frees, copies from and
// to memory that is not locked.
int64_t host_waits();
int64_t graph_launches();
int64_t events_made();  // by cudaEventCreateWithFlags
// What was handed to a stream one by one, or recorded: kernels, and copies and clears.
struct Handed {
  int64_t kernels = 0;
  int64_t copies = 0;
};
Handed handed();
std::vector<std::string> violations();

// The calling thread's current context, as a program that embeds the library would set it.
CUcontext current_context();
void set_current_context(CUcontext context);
CUcontext foreign_context();  // one that belongs to no GPU's runtime
CUcontext primary_context(int gpu);
bool has_context(int gpu);  // something created the GPU's primary context
int current_gpu_calls(int gpu);

}  // namespace ds::testing::stand_in
#pragma GCC visibility pop
