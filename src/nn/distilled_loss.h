// The loss of a batch with its labels and with what a teacher says of it, and its gradient.
#pragma once

#include <functional>
#include <memory>

#include "nn/loss.h"
#include "ops/distillation.h"

namespace ds::nn {

// What a teacher adds to the loss of a batch: see ops::distillation.
struct Distillation {
  ops::DistillationWeights weights;
  // The teacher's logits of one of `parts` equal parts of the rows, [rows / parts, columns]: they
  // are asked for one after another and held one at a time.
  int64_t parts = 1;
  std::function<Tensor(int64_t part)> teacher;
};
struct DistilledLoss {
  Tensor sum;  // of both losses with their weights; these three are float64 [1] on the device
  Tensor cross_entropy;  // sums over the counted labels
  Tensor divergence;
  std::shared_ptr<GradientSlot> slot;  // for the gradient of the mean, fp32 [] on the host
};
// The logits' memory is overwritten by their gradient.
DistilledLoss summed_distillation(Tape& tape, const Value& logits, const Labels& labels,
                                  int64_t valid, const Distillation& from);

}  // namespace ds::nn
