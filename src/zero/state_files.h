// Training state in files: masters, gradients and the optimizer's states of an optimizer that is
// offloaded to a file system (ZeRO-Infinity, Rajbhandari et al., arXiv:2104.07857). Weights in the
// compute type stay in memory.
#pragma once

#include <memory>

#include "io/file_array.h"
#include "optim/array_factory.h"

namespace ds::zero {

struct StateFileOptions {
  io::FileArrayOptions files;
  int64_t sub_group_elements = 0;  // that an update takes at a time, at most
  bool gradients = true;           // lie in files too
};

class StateFiles final : public optim::ArrayFactory {
 public:
  // Elements that are mapped at a time where the configuration allows more: larger parts would
  // neither travel faster nor hide more.
  static constexpr int64_t kMostElements = int64_t{8} << 20;

  // What it allows, in whole chunks of an update.
  static int64_t most_of(int64_t sub_group_elements);
  // `device` is the CPU, whose account counts the memory that ranges travel through.
  StateFiles(StateFileOptions options, std::shared_ptr<Device> device);

  bool makes(optim::ArrayRole role) const override {
    return gradients_ || role != optim::ArrayRole::kGradients;
  }
  std::shared_ptr<ArrayStore> make(const optim::ArrayRequest& request) override;
  int64_t most_elements() const override { return most_elements_; }

 private:
  const int64_t most_elements_;
  const bool gradients_;
  const std::shared_ptr<io::FileArrays> files_;
};

}  // namespace ds::zero
