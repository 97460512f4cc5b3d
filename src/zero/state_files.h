// Training state in files (ZeRO-Infinity, Rajbhandari et al., arXiv:2104.07857): masters, gradients
// and the optimizer's states of an optimizer that is offloaded to a file system, and weights that
// ranks hold in pieces.
#pragma once

#include <memory>
#include <optional>

#include "io/file_array.h"
#include "kernels/optimizer/update.h"
#include "optim/array_factory.h"

namespace ds::zero {

struct StateFileOptions {
  // Of the optimizer, and of the weights; none: they lie in memory.
  std::optional<io::FileArrayOptions> optimizer, weights;
  int64_t sub_group_elements = 0;  // that an update takes at a time, at most
  bool gradients = true;           // lie with the optimizer's
  double optimizer_share = 1;      // of the optimizer's arrays, the last elements of each
  int64_t weights_in_memory = 0;   // elements of this rank's, the first ones
};

class StateFiles final : public optim::ArrayFactory {
 public:
  // Elements that are mapped at a time where the configuration allows more: 4 MiB of fp32 travel as
  // fast as more, and need less memory while they do.
  static constexpr int64_t kMostElements = int64_t{1} << 20;

  // What it allows, in whole chunks of an update.
  static int64_t most_of(int64_t sub_group_elements);
  // `device` is the CPU, whose account counts the memory that ranges travel through.
  StateFiles(StateFileOptions options, std::shared_ptr<Device> device);

  // Elements that stay in memory of an array whose last `share` lies in a file: whole chunks of an
  // update, or whole arrays.
  static int64_t stay_of(int64_t elements, double share, int64_t chunk = kernels::kUpdateChunk);

  bool makes(optim::ArrayRole role) const override;
  std::shared_ptr<ArrayStore> make(const optim::ArrayRequest& request) override;
  int64_t most_elements() const override { return most_elements_; }

 private:
  const int64_t most_elements_;
  std::shared_ptr<ArrayStore> split(io::FileArrays& files, const optim::ArrayRequest& request,
                                    int64_t stay) const;

  const bool gradients_;
  const double optimizer_share_;
  const int64_t weights_in_memory_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<io::FileArrays> optimizer_, weights_;  // null: in memory
};

}  // namespace ds::zero
