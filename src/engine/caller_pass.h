// A forward and backward pass that a program computes with parameters of its own: what it fetches,
// releases and gives gradients of in a micro batch. Other ranks wait for the same, so a rank that
// has joined does it again.
#pragma once

#include <vector>

#include "zero/train_state.h"

namespace ds {

class CallerPass {
 public:
  enum class Kind { kFetch, kRelease, kGradient };

  // Begins the pass, where none is open.
  void begin(zero::TrainState& state);
  // Makes room for one use, so that add() after a collective does not fail.
  void reserve_one() { uses_.reserve(uses_.size() + 1); }
  // The parameters that are used, for the caller to fill in.
  std::vector<nn::ParamId>& add(Kind kind) { return uses_.emplace_back(Use{kind, {}}).parameters; }
  // The micro batch is over; with `keep` it is what a joined rank repeats.
  void end_micro_batch(bool keep);
  // The micro batch is given up: its uses, and the pass itself.
  void drop_uses() { uses_.clear(); }
  void drop(zero::TrainState& state);

  // Whether there was a micro batch to repeat.
  bool can_repeat() const { return !last_uses_.empty(); }
  // The collectives of the last micro batch, without gradients.
  void repeat(zero::TrainState& state);

 private:
  struct Use {
    Kind kind;
    std::vector<nn::ParamId> parameters;
  };
  std::vector<Use> uses_, last_uses_;
  bool open_ = false;
};

}  // namespace ds
