// Where and how kernels for a GPU are queued, for code that is not compiled for the GPU.
#pragma once

#include <compare>

namespace ds::kernels {

// Who computes attention: the faster of the two for the form, or one of them wherever it can.
enum class AttentionChoice { kAuto, kOwn, kCudnn };

// What the caller of kernels allows on a GPU. Ranks that train together have the same policy.
struct GpuPolicy {
  AttentionChoice attention = AttentionChoice::kAuto;
  // Only algorithms whose library promises the same bits in every run.
  bool strict_determinism = false;
  // The algorithms that cuBLASLt proposes for a product are timed, instead of taking the first.
  bool time_products = false;
  // Products of fp32 round their operands to TF32.
  bool tf32 = false;
  auto operator<=>(const GpuPolicy&) const = default;
};

// The counterpart of a ThreadPool for kernels on a GPU: calls return at once, and the work runs in
// the order of the stream. The GPU must be current on the calling thread (ds::DeviceScope).
struct GpuStream {
  void* native = nullptr;  // a cudaStream_t
  int processors = 1;      // streaming multiprocessors, for grids that should fill the GPU once
  int gpu = 0;             // its number in this process
  int capability = 0;      // compute capability 9.0 is 90
  GpuPolicy policy;
};

}  // namespace ds::kernels
