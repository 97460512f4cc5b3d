// State of an offloaded optimizer of which a share stays on the GPU: the first elements of each
// array lie in the GPU's memory, which updates them, and the others on the host, which updates
// those at the same time (Twin-Flow of DeepSpeed's ZeRO-Offload++, 2023).
#pragma once

#include <memory>

#include "optim/array_factory.h"

namespace ds::zero {

struct TwinFlowOptions {
  double host_share = 1;  // of the elements of each array, the last ones
  bool pinned = true;     // those lie in memory that the GPU's copies reach
  int64_t sub_group_elements = 0;
};

class TwinFlowArrays final : public optim::ArrayFactory {
 public:
  // `host` is its pageable memory. `others` makes the arrays of roles that are none of the
  // optimizer's; null: they lie in memory.
  TwinFlowArrays(const TwinFlowOptions& options, std::shared_ptr<Device> gpu,
                 std::shared_ptr<Device> host, std::shared_ptr<optim::ArrayFactory> others);

  bool makes(optim::ArrayRole role) const override;
  std::shared_ptr<ArrayStore> make(const optim::ArrayRequest& request) override;
  int64_t most_elements() const override { return options_.sub_group_elements; }

 private:
  const TwinFlowOptions options_;
  const std::shared_ptr<Device> gpu_, host_;
  const std::shared_ptr<optim::ArrayFactory> others_;
};

}  // namespace ds::zero
