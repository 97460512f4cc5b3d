#include "zero/gradient_recording.h"

namespace ds::zero {

void GradientRecording::begin() {
  before_ = marks_.snapshot();
  if (reducer_) reducer_->begin_recording();
}

GradientRecording::Left GradientRecording::end() {
  Left left{marks_.snapshot(), reducer_ ? reducer_->end_recording() : std::vector<size_t>()};
  drop();
  return left;
}

void GradientRecording::drop() {
  if (reducer_) reducer_->end_recording();
  marks_.restore(before_);
  sums_.drop();
}

void GradientRecording::begin_launch() {
  if (reducer_) reducer_->await_recorded();
}

void GradientRecording::finish_launch(const Left& left) {
  marks_.restore(left.marks);
  if (reducer_) reducer_->send_recorded(left.buckets);
}

}  // namespace ds::zero
