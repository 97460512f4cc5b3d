#include "zero/state_files.h"

#include <algorithm>

#include "tensor/split_array.h"

namespace ds::zero {
namespace {

std::shared_ptr<io::FileArrays> open_files(std::optional<io::FileArrayOptions> files,
                                           int64_t part_bytes,
                                           const std::shared_ptr<Device>& device) {
  if (!files) return nullptr;
  files->part_bytes = std::max(files->part_bytes, part_bytes);
  return std::make_shared<io::FileArrays>(*files, device);
}

}  // namespace

int64_t StateFiles::most_of(int64_t sub_group_elements) {
  constexpr int64_t kChunk = kernels::kUpdateChunk;
  return std::clamp(sub_group_elements, kChunk, kMostElements) / kChunk * kChunk;
}

int64_t StateFiles::stay_of(int64_t elements, double share, int64_t chunk) {
  if (share <= 0) return elements;
  const double stay = (1 - share) * static_cast<double>(elements);
  return std::clamp(static_cast<int64_t>(stay), int64_t{0}, elements) / chunk * chunk;
}

StateFiles::StateFiles(StateFileOptions options, std::shared_ptr<Device> device)
    : most_elements_(most_of(options.sub_group_elements)),
      gradients_(options.gradients),
      optimizer_share_(options.optimizer_share),
      weights_in_memory_(options.weights_in_memory),
      device_(std::move(device)),
      optimizer_(open_files(std::move(options.optimizer), most_elements_ * int64_t{sizeof(float)},
                            device_)),
      weights_(open_files(std::move(options.weights), most_elements_ * int64_t{sizeof(bfloat16)},
                          device_)) {}

bool StateFiles::makes(optim::ArrayRole role) const {
  if (role == optim::ArrayRole::kWeights) return weights_ != nullptr;
  return optimizer_ != nullptr && (gradients_ || role != optim::ArrayRole::kGradients);
}

std::shared_ptr<ArrayStore> StateFiles::make(const optim::ArrayRequest& request) {
  if (request.role == optim::ArrayRole::kWeights) {
    return split(*weights_, request, std::clamp<int64_t>(weights_in_memory_, 0, request.elements));
  }
  const int64_t chunk = kernels::kUpdateChunk / optim::elements_each(request.role);
  return split(*optimizer_, request, stay_of(request.elements, optimizer_share_, chunk));
}

// The first `stay` elements in memory, the others in a file.
std::shared_ptr<ArrayStore> StateFiles::split(io::FileArrays& files,
                                              const optim::ArrayRequest& request,
                                              int64_t stay) const {
  if (stay == 0) return files.make(request.name, request.dtype, request.elements);
  const Tensor memory =
      Tensor::zeros(device_, request.dtype, {stay}, optim::memory_tag(request.role));
  StoredArray rest;
  if (stay < request.elements) {
    rest = files.make(request.name, request.dtype, request.elements - stay);
  }
  return std::make_shared<SplitArray>(memory, rest);
}

}  // namespace ds::zero
