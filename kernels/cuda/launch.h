// Launches of kernels, with errors that name the kernel. Only for sources that are compiled for the
// GPU; tests compile the same sources for the CPU (tests/cuda/emulation).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <tuple>
#include <utility>

#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels::cuda {

// Blocks, threads of a block, and bytes of dynamic shared memory.
struct Grid {
  int64_t blocks = 0;
  int threads = 256;
  int64_t shared = 0;
  int64_t blocks_y = 1;  // at most 65535
};

// Throws Error(kDevice), which names the kernel, unless its launch was accepted.
void check_launch(cudaError_t status, const char* name);

// Throws Error(kInternal) for a grid that CUDA would cut to 32 bits.
void check_grid(const Grid& grid, const char* name);

// Lets blocks of a kernel have `bytes` of dynamic shared memory on this GPU. Without that a block
// has 48 KiB, of which what the kernel declares itself is a part: so each kernel that takes any is
// allowed it, and nobody needs to know how much it declares. Remembered by kernel and GPU, so that
// launches after the first of a size do not call the driver.
void allow_shared(const void* kernel, const GpuStream& on, int64_t bytes, const char* name);

// An empty grid is no launch.
template <class... Parameters, class... Arguments>
void launch(const GpuStream& on, const char* name, void (*kernel)(Parameters...), const Grid& grid,
            Arguments&&... arguments) {
  if (grid.blocks == 0 || grid.blocks_y == 0) return;
  check_grid(grid, name);
  const auto stream = static_cast<cudaStream_t>(on.native);
  const dim3 blocks(static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.blocks_y));
  const dim3 threads(static_cast<unsigned>(grid.threads));
  const auto shared = static_cast<size_t>(grid.shared);
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  if (grid.shared > 0) {
    allow_shared(reinterpret_cast<const void*>(kernel), on, grid.shared, name);
  }
#ifndef DS_EMULATED_GPU
  check_launch(std::apply(
                   [&](auto&... value) {
                     // One more than needed: a kernel may have no parameters.
                     void* pointers[] = {static_cast<void*>(&value)..., nullptr};
                     return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), blocks, threads,
                                             pointers, shared, stream);
                   },
                   values),
               name);
#else
  check_launch(emulation::launch(reinterpret_cast<const void*>(kernel), stream, blocks, threads,
                                 shared, [kernel, values] { std::apply(kernel, values); }),
               name);
#endif
}

// Blocks of `threads` threads that give every one of n items a thread, but at most `most_waves`
// full GPUs of them: kernels loop over the rest.
inline Grid grid_for(const GpuStream& on, int64_t n, int threads = 256, int most_waves = 8) {
  const int64_t wanted = (n + threads - 1) / threads;
  const int64_t most = int64_t{on.processors} * most_waves * (2048 / threads);
  return {wanted < most ? wanted : most, threads};
}

}  // namespace ds::kernels::cuda
