#include "zero/state_files.h"

#include <algorithm>

#include "kernels/optimizer/update.h"
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

StateFiles::StateFiles(StateFileOptions options, std::shared_ptr<Device> device)
    : most_elements_(most_of(options.sub_group_elements)),
      gradients_(options.gradients),
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
  if (request.role != optim::ArrayRole::kWeights) {
    return optimizer_->make(request.name, request.dtype, request.elements);
  }
  const int64_t stay = std::clamp<int64_t>(weights_in_memory_, 0, request.elements);
  if (stay == 0) return weights_->make(request.name, request.dtype, request.elements);
  const Tensor memory = Tensor::zeros(device_, request.dtype, {stay}, MemoryTag::kParameters);
  StoredArray rest;
  if (stay < request.elements) {
    rest = weights_->make(request.name, request.dtype, request.elements - stay);
  }
  return std::make_shared<SplitArray>(memory, rest);
}

}  // namespace ds::zero
