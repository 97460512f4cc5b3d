// Gradients of a forward and backward that are recorded as a CUDA graph and launched again and
// again: nothing is reduced while they are recorded, and after each launch what a backward would
// have sent is. Other ranks may run theirs meanwhile: the collectives are the same.
#pragma once

#include <memory>
#include <vector>

#include "zero/gradient_marks.h"
#include "zero/gradient_reducer.h"
#include "zero/gradient_sums.h"

namespace ds::zero {

class GradientRecording {
 public:
  // `reducer` may hold none, and another one later.
  GradientRecording(GradientMarks& marks, GradientSums& sums,
                    const std::unique_ptr<GradientReducer>& reducer)
      : marks_(marks), sums_(sums), reducer_(reducer) {}

  // What a launch leaves.
  struct Left {
    GradientMarks::Snapshot marks;
    std::vector<size_t> buckets;  // complete, in this order
  };
  // Around the recording, which changes nothing; where it fails drop() is called instead of end().
  void begin();
  Left end();
  void drop();

  // Around each launch. The second reduces what it left (every rank).
  void begin_launch();
  void finish_launch(const Left& left);

 private:
  GradientMarks& marks_;
  GradientSums& sums_;
  const std::unique_ptr<GradientReducer>& reducer_;
  GradientMarks::Snapshot before_;
};

}  // namespace ds::zero
