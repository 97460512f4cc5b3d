// The loss of a batch and its gradient.
#pragma once

#include "nn/tape.h"
#include "tensor/transfer.h"

namespace ds::nn {

// What is made of outputs and labels.
enum class LossKind {
  kCrossEntropy,        // one class per row
  kSquaredError,        // numbers, of every output
  kBinaryCrossEntropy,  // a probability from 0 to 1 for every output, from its logit
};

// Labels where the loss reads them.
struct Labels {
  Tensor
      targets;  // int32, flat, on the device; of other kinds than cross entropy fp32, on the host
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
  // `added`: other losses of the batch, which are no sums over labels.
  MeanLoss(const Tensor& sum, int64_t counted, double added = 0)
      : sum_(sum), counted_(counted), added_(added) {}
  // Waits for it the first time; without a label that counts, what is added alone.
  float value();

 private:
  Fetched sum_;
  int64_t counted_;
  double added_;
};

// The same of any kind. All but cross entropy are of small heads: they are computed on the host, in
// double precision, which on a GPU waits for the logits.
SummedLoss summed_loss(Tape& tape, const Value& logits, const Labels& labels, int64_t valid,
                       LossKind kind);

// Mean over the counted labels, fp32 [] on the host, for those who read it at once; `counted`
// receives their number. Labels are given on the host.
Value mean_loss(Tape& tape, const Value& logits, const Tensor& labels, int64_t valid, LossKind kind,
                int64_t& counted);
inline Value cross_entropy(Tape& tape, const Value& logits, const Tensor& labels, int64_t valid,
                           int64_t& counted) {
  return mean_loss(tape, logits, labels, valid, LossKind::kCrossEntropy, counted);
}

}  // namespace ds::nn
