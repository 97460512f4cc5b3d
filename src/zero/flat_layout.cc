#include "zero/flat_layout.h"

#include <algorithm>

namespace ds::zero {
namespace {

// Parameters of equal key lie together, in the order in which they were added.
struct Key {
  bool frozen;
  std::string_view group;
  bool spared;  // from weight decay
  auto operator<=>(const Key&) const = default;
};

Key key_of(const nn::Parameter& p) {
  if (!p.trainable) return {true, {}, false};
  return {false, p.group, !p.decays};
}

}  // namespace

FlatLayout::FlatLayout(const nn::ParameterSet& parameters)
    : ranges_(static_cast<size_t>(parameters.size())),
      order_(static_cast<size_t>(parameters.size())) {
  for (size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<nn::ParamId>(i);
  std::stable_sort(order_.begin(), order_.end(), [&](nn::ParamId a, nn::ParamId b) {
    return key_of(parameters[a]) < key_of(parameters[b]);
  });
  for (const nn::ParamId id : order_) {
    const int64_t n = parameters[id].shape.elements();
    ranges_[static_cast<size_t>(id)] = {elements_, elements_ + n};
    elements_ += (n + kAlign - 1) / kAlign * kAlign;
    if (parameters[id].trainable) trainable_elements_ = elements_;
  }
}

nn::ParamId FlatLayout::parameter_at(int64_t index) const {
  // The last parameter that begins at or before the index; empty ones share their begin.
  const auto after = std::upper_bound(
      order_.begin(), order_.end(), index,
      [&](int64_t at, nn::ParamId id) { return at < ranges_[static_cast<size_t>(id)].begin; });
  if (after == order_.begin()) return nn::kNoParam;
  const nn::ParamId id = *(after - 1);
  return index < ranges_[static_cast<size_t>(id)].end ? id : nn::kNoParam;
}

FlatRange FlatLayout::shard(int rank, int world) const {
  const int64_t blocks = (trainable_elements_ + kAlign - 1) / kAlign;
  const int64_t part = (blocks + world - 1) / world * kAlign;
  return {std::min(rank * part, trainable_elements_),
          std::min((rank + 1) * part, trainable_elements_)};
}

}  // namespace ds::zero
