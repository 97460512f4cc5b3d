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
  // Of losses with the labels and with the teacher: the same as loss_sum.
  double label_sum = 0, teacher_sum = 0;
};

// Collective; `distils`: a teacher takes part in the step. The loss of a rank alone may not have
// come yet.
StepTotals exchange_totals(const std::shared_ptr<Device>& host, const RankGroup& ranks,
                           OpenStep& open, bool distils = false);

// Some ranks had fewer micro batches than others.
bool uneven(const StepTotals& totals, const OpenStep& open, int ranks);

// Of a sum of losses of all ranks, over the micro batches that had a loss: a program with gradients
// of its own may give none. `share`: what gradients are multiplied by where ranks are uneven.
double mean_loss(double sum, const StepTotals& totals, const OpenStep& open, int ranks,
                 double share);

}  // namespace ds
