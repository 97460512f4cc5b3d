#include "device/cuda_support.h"

#include "base/error.h"

namespace ds::cuda {
namespace {

// After these the driver refuses all further work of the process on the GPU.
bool is_fatal(cudaError_t status) {
  switch (status) {
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorMisalignedAddress:
      return true;
    default:
      return false;
  }
}

template <class Call>
void find_driver_call(const char* name, Call* result) {
  constexpr unsigned kFirstVersion = 4000;  // both calls are as they were in CUDA 4.0
  void* found = nullptr;
  cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion(name, &found, kFirstVersion, cudaEnableDefault, &answer),
        "looking for ", name, " in the driver");
  DS_CHECK(answer == cudaDriverEntryPointSuccess && found != nullptr, Code::kDevice,
           "CUDA: the NVIDIA driver has no ", name, "; it cannot be used");
  *result = reinterpret_cast<Call>(found);
}

}  // namespace

std::string error_text(cudaError_t status) {
  return str_cat(cudaGetErrorName(status), " (", cudaGetErrorString(status), ")");
}

void fail_call(cudaError_t status, const std::string& what) {
  const char* const note = is_fatal(status)
                               ? "; earlier work on this GPU may be the cause, and the process "
                                 "must be restarted to use the GPU again"
                               : "";
  fail(Code::kDevice, "CUDA: ", what, " failed: ", error_text(status), note);
}

Place find_place(int index) {
  Place place;
  place.index = index;
  find_driver_call("cuCtxGetCurrent", &place.get_context);
  find_driver_call("cuCtxSetCurrent", &place.set_context);
  return place;
}

cudaError_t enter(const Place& place, CUcontext* before) noexcept {
  const CUresult result = place.get_context(before);
  if (result != CUDA_SUCCESS) return static_cast<cudaError_t>(result);  // the numbers are the same
  const cudaError_t status = cudaSetDevice(place.index);
  if (status != cudaSuccess) place.set_context(*before);
  return status;
}

Scope::Scope(const Place& place) noexcept : place_(place), status_(enter(place, &before_)) {
  restore_ = status_ == cudaSuccess;
}

Scope::~Scope() {
  if (restore_) place_.set_context(before_);
}

}  // namespace ds::cuda
