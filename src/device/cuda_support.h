// What every use of the CUDA runtime here needs: errors with names, and a scope that makes a GPU
// current and then restores what the calling thread had. Only for the sources of a CUDA build.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "base/text.h"
#include "device/device.h"

namespace ds::cuda {

// "cudaErrorNoDevice (no CUDA-capable device is detected)".
std::string error_text(cudaError_t status);

// Throws Error(kDevice) "CUDA: <what> failed: <name> (<text>)".
[[noreturn]] void fail_call(cudaError_t status, const std::string& what);

template <class... Parts>
void check(cudaError_t status, const Parts&... what) {
  if (status != cudaSuccess) [[unlikely]]
    fail_call(status, str_cat(what...));
}

// A GPU, with the driver's calls that read and set a thread's current context. cudaGetDevice and
// cudaSetDevice cannot restore faithfully: a thread that never used CUDA would be left with a
// context on GPU 0, a thread with a context of its own would lose it.
struct Place {
  int index = 0;
  CUresult (*get_context)(CUcontext*) = nullptr;
  CUresult (*set_context)(CUcontext) = nullptr;
};
// Throws Error(kDevice) when the driver lacks the calls.
Place find_place(int index);

// Makes the place's GPU current on this thread; `before` receives the context to restore.
cudaError_t enter(const Place& place, CUcontext* before) noexcept;

// The same until the end of the scope.
class Scope {
 public:
  explicit Scope(const Place& place) noexcept;
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  cudaError_t status() const noexcept { return status_; }

 private:
  const Place& place_;
  CUcontext before_ = nullptr;
  cudaError_t status_;
  bool restore_ = false;
};

// The host memory of CudaDevice::pinned(); `gpu` names the GPU in messages.
std::shared_ptr<Device> make_pinned_memory(const Place& place, const std::string& gpu);

// The result of `function` (which returns a cudaError_t and does not throw), called with the GPU
// current. A failure is not left behind as the runtime's "last error", where a later check of a
// kernel launch would find it.
template <class Function>
cudaError_t call(const Place& place, Function&& function) noexcept {
  const Scope scope(place);
  cudaError_t status = scope.status();
  if (status == cudaSuccess) status = function();
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  return status;
}

}  // namespace ds::cuda
