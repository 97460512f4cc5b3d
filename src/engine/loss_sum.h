// The losses of the micro batches of an open step, added up. Those that a GPU computes may still be
// on their way: the host waits when it asks.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "nn/loss.h"

namespace ds {

class LossSum {
 public:
  // Begins with the sum of so many losses.
  void reset(double sum = 0, int64_t count = 0) {
    open_.clear();
    sum_ = sum;
    count_ = count;
  }
  void add(nn::MeanLoss loss) {
    open_.push_back(std::move(loss));
    ++count_;
  }
  // A loss that the caller computed.
  void add(double loss) {
    sum_ = value() + loss;
    ++count_;
  }
  // How many were added: a program with gradients of its own need not give any.
  int64_t count() const { return count_; }
  double value() {
    for (nn::MeanLoss& loss : open_) sum_ += loss.value();
    open_.clear();
    return sum_;
  }
  // Of the micro batch that was added last, before anybody asks for the sum.
  float newest() { return open_.back().value(); }

 private:
  double sum_ = 0;
  int64_t count_ = 0;
  std::vector<nn::MeanLoss> open_;  // in their order
};

}  // namespace ds
