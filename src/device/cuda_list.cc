// The GPUs that this process sees, or why it sees none.
#include <string_view>

#include "device/cuda_device.h"
#include "device/cuda_support.h"

namespace ds {
namespace {

std::string version_text(int version) {
  return version > 0 ? str_cat(version / 1000, ".", version % 1000 / 10) : "";
}

std::string reason_of(cudaError_t status) {
  switch (status) {
    case cudaErrorInsufficientDriver: {
      const std::string driver = cuda_driver_version();
      if (driver.empty()) return "this machine has no NVIDIA driver (libcuda.so.1 was not found)";
      return str_cat("the NVIDIA driver supports CUDA ", driver, " at most, this build needs ",
                     cuda_runtime_version(), ": update the driver");
    }
    case cudaSuccess:
    case cudaErrorNoDevice:
      return "the NVIDIA driver shows no GPU to this process (CUDA_VISIBLE_DEVICES may hide it)";
    default:
      return str_cat("CUDA cannot start: ", cuda::error_text(status));
  }
}

}  // namespace

std::string cuda_runtime_version() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version_text(version) : "";
}

std::string cuda_driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version_text(version) : "";
}

std::vector<CudaDeviceInfo> list_cuda_devices(std::string* why_none) {
  if (why_none != nullptr) why_none->clear();
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count <= 0) {
    if (why_none != nullptr) *why_none = reason_of(status);
    static_cast<void>(cudaGetLastError());
    return {};
  }
  std::vector<CudaDeviceInfo> devices;
  for (int index = 0; index < count; ++index) {
    CudaDeviceInfo& info = devices.emplace_back();
    info.index = index;
    cudaDeviceProp found = {};
    const cudaError_t result = cudaGetDeviceProperties(&found, index);
    if (result != cudaSuccess) {
      info.name = str_cat("unreadable: ", cuda::error_text(result));
      static_cast<void>(cudaGetLastError());
      continue;
    }
    info.name = found.name;
    info.memory_bytes = static_cast<int64_t>(found.totalGlobalMem);
    info.compute_major = found.major;
    info.compute_minor = found.minor;
    info.multiprocessors = found.multiProcessorCount;
    for (const char byte : found.uuid.bytes) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      info.uuid += kDigits[static_cast<unsigned char>(byte) >> 4];
      info.uuid += kDigits[static_cast<unsigned char>(byte) & 15];
    }
  }
  return devices;
}

}  // namespace ds
