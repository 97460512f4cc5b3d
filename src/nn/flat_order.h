// Where each parameter of a set lies in one flat array over all of them, when nothing is shared
// between ranks. zero::FlatLayout has the same order, and the same ranges where one rank has all;
// so an array of weights becomes training's masters as it is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nn/parameter.h"

namespace ds::nn {

// Each parameter begins at a multiple of so many elements; gaps are zeros and stay zeros.
inline constexpr int64_t kFlatAlign = 32;

// A range of a flat space, in elements.
struct FlatRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t elements() const { return end - begin; }
};

// Trainable parameters come first, and those that share a group and decay alike lie together, so
// that an update is one pass over a long range.
std::vector<ParamId> flat_order(const ParameterSet& parameters);

class FlatOrder {
 public:
  explicit FlatOrder(const ParameterSet& parameters);

  int64_t elements() const { return elements_; }  // all parameters, with gaps
  FlatRange range(ParamId id) const { return ranges_[static_cast<size_t>(id)]; }
  // Parameters in the order of the flat space.
  std::span<const ParamId> order() const { return order_; }

 private:
  std::vector<ParamId> order_;
  std::vector<FlatRange> ranges_;
  int64_t elements_ = 0;
};

}  // namespace ds::nn
