#include "device/cuda_lent.h"

#include "base/error.h"
#include "device/cuda_device.h"
#include "device/cuda_support.h"

namespace ds {
namespace {

cuda::Place place_of(int index) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count <= 0) {
    std::string why_none;
    list_cuda_devices(&why_none);
    fail(Code::kUnsupported, "cuda:", index, " cannot be used: ", why_none);
  }
  DS_CHECK(index >= 0 && index < count, Code::kInvalidArgument, "cuda:", index,
           " does not exist; there are ", count, " GPUs");
  return cuda::find_place(index);
}

}  // namespace

void accept_cuda_memory(int index, const void* data, void* stream) {
  const cuda::Place place = place_of(index);
  cudaPointerAttributes found = {};
  cuda::check(cuda::call(place, [&] { return cudaPointerGetAttributes(&found, data); }),
              "asking whose memory ", data, " is");
  DS_CHECK(found.type == cudaMemoryTypeDevice || found.type == cudaMemoryTypeManaged,
           Code::kInvalidArgument, data, " is no memory of a GPU");
  DS_CHECK(found.device == index, Code::kInvalidArgument, data, " is memory of cuda:", found.device,
           ", not of cuda:", index);
  const auto on = static_cast<cudaStream_t>(stream);
  cuda::check(cuda::call(place, [&] { return cudaStreamSynchronize(on); }),
              "waiting for the lender's stream on cuda:", index);
}

void copy_lent_cuda(int index, void* to, const void* from, int64_t bytes) {
  const cuda::Place place = place_of(index);
  const auto size = static_cast<size_t>(bytes);
  cuda::check(cuda::call(place, [&] { return cudaMemcpy(to, from, size, cudaMemcpyDefault); }),
              "copying ", bytes, " lent bytes of cuda:", index);
}

}  // namespace ds
