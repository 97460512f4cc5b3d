#include "zero/state_files.h"

#include <algorithm>

#include "kernels/optimizer/update.h"

namespace ds::zero {
namespace {

io::FileArrayOptions with_parts(io::FileArrayOptions files, int64_t elements) {
  files.part_bytes = elements * int64_t{sizeof(float)};
  return files;
}

}  // namespace

int64_t StateFiles::most_of(int64_t sub_group_elements) {
  constexpr int64_t kChunk = kernels::kUpdateChunk;
  return std::clamp(sub_group_elements, kChunk, kMostElements) / kChunk * kChunk;
}

StateFiles::StateFiles(StateFileOptions options, std::shared_ptr<Device> device)
    : most_elements_(most_of(options.sub_group_elements)),
      gradients_(options.gradients),
      files_(std::make_shared<io::FileArrays>(with_parts(std::move(options.files), most_elements_),
                                              std::move(device))) {}

std::shared_ptr<ArrayStore> StateFiles::make(const optim::ArrayRequest& request) {
  return files_->make(request.name, request.dtype, request.elements);
}

}  // namespace ds::zero
