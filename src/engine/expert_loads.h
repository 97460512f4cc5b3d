// Who went to which expert: counted over the micro batches of a step, reported when it ends.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "mesh/mesh.h"
#include "nn/router_record.h"
#include "observe/monitor.h"

namespace ds {

class ExpertLoads {
 public:
  // What a forward pass left; nothing where no layer has experts.
  void add(const nn::RouterRecord& routers);
  // How many numbers ranks add up for a model of so many layers with at most so many experts each.
  static int64_t shared_numbers(int64_t layers, int64_t experts) {
    return 3 + layers * (1 + 2 * experts);
  }
  // Collective: the open step's counts and losses become those of all ranks together, for a model
  // of so many layers with at most so many experts each. A rank may have had no pass.
  void sum(const std::shared_ptr<Device>& host, const RankGroup& ranks, int64_t layers,
           int64_t experts);
  // The open step is given up.
  void drop() {
    open_ = {};
    of_all_ranks_.clear();
  }
  void finish(int64_t step);

  // Of the open step, and of all ranks once they are summed: tokens that chose each expert of a
  // layer, followed by zeros; empty where nothing was counted.
  std::vector<int64_t> chosen(int64_t layer) const;

  // {"step", "balance_loss", "z_loss", "layers": [{"layer", "tokens", "chosen", "dropped"}]} of the
  // last step, the last two by expert; null before there is one.
  const Json& report() const { return report_; }
  // Its losses, and of each layer with experts the load of its busiest one and what was dropped.
  void add_to(std::vector<Metric>& metrics) const;

 private:
  struct Layer {
    int64_t tokens = 0;
    std::vector<int64_t> chosen;
    std::vector<int64_t> dropped;
  };
  struct Step {
    int64_t passes = 0;
    double balance_loss = 0, z_loss = 0;
    std::vector<Layer> layers;  // by index; those without experts have no counts
  };
  Step open_, last_;
  std::vector<std::vector<int64_t>> of_all_ranks_;  // who chose, also on a rank without a pass
  Json report_;
};

}  // namespace ds
