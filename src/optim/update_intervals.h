// When ZenFlow chooses columns and when it updates those that it has not chosen: counts of steps
// and, where the gradients decide, what they have added up to.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "config/config.h"

namespace ds::optim {

// How messages name what a checkpoint says of ZenFlow.
inline constexpr const char* kSavedZenFlow = "the checkpoint's ZenFlow state";

class UpdateIntervals {
 public:
  // Of so many matrices.
  UpdateIntervals(const ZeroConfig::ZenFlow& options, size_t matrices);

  // Before a step: whether it chooses columns, of an epoch of so many steps (0: not known). Nothing
  // waits then.
  bool chooses(bool chosen_before, int64_t epoch_steps) const;
  void choose() { since_choice_ = 0; }
  // Whether due() depends on the gradients, which add_gradients tells it of.
  bool by_gradients() const { return !options_.update_interval; }
  // Of a matrix, in a step: the sums of the magnitudes in a chosen column and in another one, on
  // average. `chosen` is negative where no column is, and `other` where no other is.
  struct Magnitudes {
    double chosen = 0;
    double other = 0;
  };
  void add_gradients(const std::vector<Magnitudes>& matrices);
  // Whether the step updates the other columns.
  bool due() const;
  // The step is made; `all`: it updated everything.
  void end_step(bool all);

  // Steps whose gradients wait.
  int64_t waiting() const { return waiting_; }
  // Updates of the other columns so far.
  int64_t updates() const { return updates_; }

  Json save() const;
  UpdateIntervals read(const Json& saved) const;
  // Training begins, or goes on without a saved state, after so many updates of everything.
  void restart(int64_t updates);

 private:
  struct Matrix {
    double chosen = 0;  // mean over the steps that wait
    double other = 0;   // sum over them
    bool asks = false;
  };
  ZeroConfig::ZenFlow options_;
  int64_t updates_ = 0;
  int64_t waiting_ = 0;
  int64_t since_choice_ = 0;
  std::vector<Matrix> matrices_;  // where the gradients decide
};

}  // namespace ds::optim
