// Where kernels for a GPU are queued, for code that is not compiled for the GPU.
#pragma once

namespace ds::kernels {

// The counterpart of a ThreadPool for kernels on a GPU: calls return at once, and the work runs in
// the order of the stream. The GPU must be current on the calling thread (ds::DeviceScope).
struct GpuStream {
  void* native = nullptr;  // a cudaStream_t
  int processors = 1;      // streaming multiprocessors, for grids that should fill the GPU once
};

}  // namespace ds::kernels
