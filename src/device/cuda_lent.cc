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

// cudaMemcpy will not do: between two places of a GPU it returns before the copy has ended, and our
// streams do not wait for CUDA's legacy default stream, where it runs.
class CopyStream {
 public:
  explicit CopyStream(const cuda::Place& place) : place_(place) {
    cuda::check(
        cuda::call(place_,
                   [&] { return cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }),
        "creating a stream on cuda:", place_.index);
  }
  ~CopyStream() {
    cuda::call(place_, [&] { return cudaStreamDestroy(stream_); });
  }
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  cudaStream_t handle() const noexcept { return stream_; }

 private:
  const cuda::Place& place_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

void accept_cuda_memory(int index, const void* data) {
  const cuda::Place place = place_of(index);
  cudaPointerAttributes found = {};
  cuda::check(cuda::call(place, [&] { return cudaPointerGetAttributes(&found, data); }),
              "asking whose memory ", data, " is");
  DS_CHECK(found.type == cudaMemoryTypeDevice || found.type == cudaMemoryTypeManaged,
           Code::kInvalidArgument, data, " is no memory of a GPU");
  DS_CHECK(found.device == index, Code::kInvalidArgument, data, " is memory of cuda:", found.device,
           ", not of cuda:", index);
}

void wait_for_lender(int index, void* stream) {
  const cuda::Place place = place_of(index);
  const auto on = static_cast<cudaStream_t>(stream);
  cuda::check(cuda::call(place, [&] { return cudaStreamSynchronize(on); }),
              "waiting for the lender's stream on cuda:", index);
}

void copy_lent_cuda(int index, void* to, const void* from, int64_t bytes) {
  const cuda::Place place = place_of(index);
  const auto size = static_cast<size_t>(bytes);
  const CopyStream stream(place);
  cuda::check(cuda::call(place,
                         [&] {
                           const cudaError_t queued =
                               cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream.handle());
                           const cudaError_t ended = cudaStreamSynchronize(stream.handle());
                           return queued != cudaSuccess ? queued : ended;
                         }),
              "copying ", bytes, " lent bytes of cuda:", index);
}

}  // namespace ds
