// What a build without CUDA says when it is asked for a GPU.
#include "base/error.h"
#include "device/cuda_device.h"
#include "device/cuda_lent.h"

namespace ds {
namespace {
constexpr const char* kReason = "built without CUDA (DS_WITH_CUDA is off)";
}

std::vector<CudaDeviceInfo> list_cuda_devices(std::string* why_none) {
  if (why_none != nullptr) *why_none = kReason;
  return {};
}

std::string cuda_runtime_version() { return ""; }
std::string cuda_driver_version() { return ""; }

std::shared_ptr<CudaDevice> make_cuda_device(int index, const CudaDeviceOptions&) {
  fail(Code::kUnsupported, "cuda:", index, " cannot be used: ", kReason);
}

void accept_cuda_memory(int index, const void*) {
  fail(Code::kUnsupported, "cuda:", index, " cannot be used: ", kReason);
}
void wait_for_lender(int index, void*) {
  fail(Code::kUnsupported, "cuda:", index, " cannot be used: ", kReason);
}
void copy_lent_cuda(int index, void*, const void*, int64_t) {
  fail(Code::kUnsupported, "cuda:", index, " cannot be used: ", kReason);
}

}  // namespace ds
