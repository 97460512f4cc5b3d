#include "zero/twin_flow_arrays.h"

#include "tensor/device_array.h"
#include "tensor/split_array.h"
#include "tensor/transfer.h"
#include "zero/state_files.h"

namespace ds::zero {

TwinFlowArrays::TwinFlowArrays(const TwinFlowOptions& options, std::shared_ptr<Device> gpu,
                               std::shared_ptr<Device> host,
                               std::shared_ptr<optim::ArrayFactory> others)
    : options_(options), gpu_(std::move(gpu)), host_(std::move(host)), others_(std::move(others)) {}

bool TwinFlowArrays::makes(optim::ArrayRole role) const {
  return role != optim::ArrayRole::kWeights || (others_ && others_->makes(role));
}

std::shared_ptr<ArrayStore> TwinFlowArrays::make(const optim::ArrayRequest& request) {
  if (request.role == optim::ArrayRole::kWeights) return others_->make(request);
  // Runs of an update are cut there, which is at blocks of 8-bit states.
  const int64_t block = kernels::kStateBlock / optim::elements_each(request.role);
  const int64_t updated = request.trainable >= 0 ? request.trainable : request.elements;
  const int64_t stay = StateFiles::stay_of(updated, options_.host_share, block);
  const auto zeros = [&](const std::shared_ptr<Device>& where, int64_t elements) {
    return Tensor::zeros(where, request.dtype, {elements}, optim::memory_tag(request.role));
  };
  Tensor rest = zeros(options_.pinned ? host_memory_of(gpu_) : host_, request.elements - stay);
  return std::make_shared<SplitArray>(
      StoredArray(std::make_shared<DeviceArray>(zeros(gpu_, stay), host_)), std::move(rest));
}

}  // namespace ds::zero
