#include "zero/gradient_marks.h"

#include <algorithm>

namespace ds::zero {

void GradientMarks::restore(const Snapshot& snapshot) {
  empty_ = snapshot.empty;
  empty_count_ = std::count(empty_.begin(), empty_.end(), true);
  given_ = snapshot.given;
}

void GradientMarks::set_all_empty() {
  empty_count_ = 0;
  empty_.assign(static_cast<size_t>(parameters_.size()), false);
  for (nn::ParamId id = 0; id < parameters_.size(); ++id) {
    if (!parameters_[id].trainable) continue;
    empty_[static_cast<size_t>(id)] = true;
    ++empty_count_;
  }
}

bool GradientMarks::take_empty(nn::ParamId id) {
  if (empty_count_ == 0 || !empty_[static_cast<size_t>(id)]) return false;
  empty_[static_cast<size_t>(id)] = false;
  --empty_count_;
  return true;
}

void GradientMarks::track() {
  viewed_.assign(static_cast<size_t>(parameters_.size()), false);
  given_ = viewed_;
}

void GradientMarks::set_viewed(nn::ParamId id) {
  if (viewed_.empty()) return;
  viewed_[static_cast<size_t>(id)] = given_[static_cast<size_t>(id)] = true;
}

nn::ParamId GradientMarks::first_not_given() const {
  for (size_t i = 0; i < given_.size(); ++i) {
    const auto id = static_cast<nn::ParamId>(i);
    if (!given_[i] && parameters_[id].trainable && parameters_[id].shape.elements() > 0) return id;
  }
  return nn::kNoParam;
}

}  // namespace ds::zero
