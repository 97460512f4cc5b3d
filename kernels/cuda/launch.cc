// What launches of kernels share that no kernel's source needs to compile.
#include "kernels/cuda/launch.h"

#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace ds::kernels::cuda {
namespace {

// What a kernel declares as shared memory itself.
int64_t static_shared_bytes(const void* kernel) {
  cudaFuncAttributes found{};
  return cudaFuncGetAttributes(&found, kernel) == cudaSuccess
             ? static_cast<int64_t>(found.sharedSizeBytes)
             : 0;
}

}  // namespace

void check_launch(cudaError_t status, const char* name) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  fail(Code::kDevice, "CUDA: launching ", name, " failed: ", cudaGetErrorName(status), " (",
       cudaGetErrorString(status), ")");
}

void check_grid(const Grid& grid, const char* name) {
  DS_CHECK(grid.blocks > 0 && grid.blocks <= 0x7FFFFFFF && grid.blocks_y <= 0xFFFF, Code::kInternal,
           name, ": a grid of ", grid.blocks, " x ", grid.blocks_y, " blocks");
}

void allow_shared(const void* kernel, const GpuStream& on, int64_t bytes, const char* name) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int64_t> allowed;
  const std::lock_guard lock(mutex);
  int64_t& most = allowed[{kernel, on.gpu}];
  if (bytes <= most) return;
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status == cudaSuccess) {
    most = bytes;
    return;
  }
  static_cast<void>(cudaGetLastError());
  int limit = 0;
  static_cast<void>(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, on.gpu));
  fail(Code::kDevice, "CUDA: launching ", name, " failed: its blocks need ", bytes,
       " bytes of shared memory beside ", static_shared_bytes(kernel), " of the kernel's own, and ",
       "GPU ", on.gpu, " gives a block at most ", limit, ": ", cudaGetErrorName(status), " (",
       cudaGetErrorString(status), ")");
}

}  // namespace ds::kernels::cuda
