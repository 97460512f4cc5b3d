// What the ranks of a step have together: losses, tokens, micro batches.
#pragma once

#include <cstdint>
#include <memory>

#include "mesh/mesh.h"

namespace ds {

struct OpenStep;

struct StepTotals {
  double loss_sum = 0;
  int64_t losses = 0;  // in the sum of all ranks
  int64_t tokens = 0;
  int64_t batches = 0;  // micro batches of all ranks in this step, without those of joined ranks
  int64_t samples = 0;
};

// Collective. The loss of a rank alone may not have come yet.
StepTotals exchange_totals(const std::shared_ptr<Device>& host, const RankGroup& ranks,
                           OpenStep& open);

// Some ranks had fewer micro batches than others.
bool uneven(const StepTotals& totals, const OpenStep& open, int ranks);

// Of all ranks, over the micro batches that had a loss: a program with gradients of its own may
// give none. `share`: what gradients are multiplied by where ranks are uneven.
double mean_loss(const StepTotals& totals, const OpenStep& open, int ranks, double share);

}  // namespace ds
