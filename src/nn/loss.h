// The loss of a batch and its gradient.
#pragma once

#include "nn/tape.h"
#include "tensor/transfer.h"

namespace ds::nn {

// Labels where the loss reads them.
struct Labels {
  Tensor targets;       // int32, flat, on the device
  int64_t counted = 0;  // that are not ignored

  // What each counted one weighs in the mean.
  float share() const { return counted == 0 ? 0.0f : 1.0f / static_cast<float>(counted); }
};
// `labels` lie on the host.
Labels place_labels(const Tensor& labels, const std::shared_ptr<Device>& device);

struct SummedLoss {
  Tensor sum;                          // over the counted labels: float64 [1] on the device
  std::shared_ptr<GradientSlot> slot;  // for the gradient of the mean, fp32 [] on the host
};
// Rows of logits are `valid` numbers; what follows is padding, whose gradient is 0. Nobody waits
// for the device. The logits' memory is overwritten by their gradient in backward.
SummedLoss summed_cross_entropy(Tape& tape, const Value& logits, const Labels& labels,
                                int64_t valid);

// The mean that such a sum makes, a number of the host: it may still be on its way there.
class MeanLoss {
 public:
  MeanLoss(const Tensor& sum, int64_t counted) : sum_(sum), counted_(counted) {}
  // Waits for it the first time; 0 when no label counts.
  float value();

 private:
  Fetched sum_;
  int64_t counted_;
};

// Mean over the counted labels, fp32 [] on the host, for those who read it at once; `counted`
// receives their number. Labels are given on the host.
Value cross_entropy(Tape& tape, const Value& logits, const Tensor& labels, int64_t valid,
                    int64_t& counted);

}  // namespace ds::nn
