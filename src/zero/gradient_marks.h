// What is known of gradients besides their numbers, by parameter: which are empty, so that backward
// overwrites them instead of adding, and which were given since they were cleared.
#pragma once

#include <vector>

#include "nn/parameter.h"

namespace ds::zero {

class GradientMarks {
 public:
  explicit GradientMarks(const nn::ParameterSet& parameters) : parameters_(parameters) {}

  // For who replays a backward that was recorded, and sets what it left.
  struct Snapshot {
    std::vector<bool> empty;  // none when all have numbers
    std::vector<bool> given;
    bool operator==(const Snapshot&) const = default;
  };
  Snapshot snapshot() const { return {empty_count_ > 0 ? empty_ : std::vector<bool>(), given_}; }
  void restore(const Snapshot& snapshot);

  // Whatever the memory of trainable parameters' gradients holds does not count.
  void set_all_empty();
  void set_none_empty() { empty_count_ = 0; }
  bool any_empty() const { return empty_count_ > 0; }
  bool empty(nn::ParamId id) const { return empty_count_ > 0 && empty_[static_cast<size_t>(id)]; }
  // True once after each set_all_empty: the gradient was empty, and the caller fills it.
  bool take_empty(nn::ParamId id);

  // Notes from now on which parameters get a gradient between clears. A caller may write a view at
  // any time: its parameter counts as given.
  void track();
  void set_given(nn::ParamId id) {
    if (!given_.empty()) given_[static_cast<size_t>(id)] = true;
  }
  void set_viewed(nn::ParamId id);
  void clear_given() { given_ = viewed_; }
  // The first trainable parameter that got none, while they are noted; kNoParam.
  nn::ParamId first_not_given() const;

 private:
  const nn::ParameterSet& parameters_;
  std::vector<bool> empty_;  // by parameter
  int64_t empty_count_ = 0;
  std::vector<bool> given_, viewed_;  // by parameter; empty unless gradients are tracked
};

}  // namespace ds::zero
