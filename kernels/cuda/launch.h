// Launches of kernels, with errors that name the kernel. Only for sources that are compiled for the
// GPU; tests compile the same sources for the CPU (tests/cuda/emulation).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "kernels/cuda/gpu_stream.h"

namespace ds::kernels::cuda {

// Blocks, threads of a block, and bytes of dynamic shared memory.
struct Grid {
  int64_t blocks = 0;
  int threads = 256;
  int64_t shared = 0;
  int64_t blocks_y = 1;  // at most 65535
};

// Shared memory that every block has without asking.
inline constexpr int64_t kPlainSharedBytes = 48 << 10;

inline void check_launch(cudaError_t status, const char* name) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  fail(Code::kDevice, "CUDA: launching ", name, " failed: ", cudaGetErrorName(status), " (",
       cudaGetErrorString(status), ")");
}

// An empty grid is no launch. Dimensions are checked: CUDA would cut them to 32 bits.
template <class... Parameters, class... Arguments>
void launch(const GpuStream& on, const char* name, void (*kernel)(Parameters...), const Grid& grid,
            Arguments&&... arguments) {
  if (grid.blocks == 0 || grid.blocks_y == 0) return;
  DS_CHECK(grid.blocks > 0 && grid.blocks <= 0x7FFFFFFF && grid.blocks_y <= 0xFFFF, Code::kInternal,
           name, ": a grid of ", grid.blocks, " x ", grid.blocks_y, " blocks");
  const auto stream = static_cast<cudaStream_t>(on.native);
  const dim3 blocks(static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.blocks_y));
  const dim3 threads(static_cast<unsigned>(grid.threads));
  const auto shared = static_cast<size_t>(grid.shared);
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
#ifdef __CUDACC__
  if (grid.shared > kPlainSharedBytes) {
    check_launch(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(grid.shared)),
                 name);
  }
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
  check_launch(emulation::launch(stream, blocks, threads, shared,
                                 [kernel, values] { std::apply(kernel, values); }),
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
