#include "nn/flat_order.h"

#include <algorithm>
#include <string_view>

namespace ds::nn {
namespace {

// Parameters of equal key lie together, in the order in which they were added.
struct Key {
  bool frozen;
  std::string_view group;
  bool spared;                                   // from weight decay
  auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr)
};

Key key_of(const Parameter& p) {
  if (!p.trainable) return {true, {}, false};
  return {false, p.group, !p.decays};
}

}  // namespace

std::vector<ParamId> flat_order(const ParameterSet& parameters) {
  std::vector<ParamId> order(static_cast<size_t>(parameters.size()));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<ParamId>(i);
  std::stable_sort(order.begin(), order.end(), [&](ParamId a, ParamId b) {
    return key_of(parameters[a]) < key_of(parameters[b]);
  });
  return order;
}

FlatOrder::FlatOrder(const ParameterSet& parameters)
    : order_(flat_order(parameters)), ranges_(order_.size()) {
  for (const ParamId id : order_) {
    const int64_t n = parameters[id].shape.elements();
    ranges_[static_cast<size_t>(id)] = {elements_, elements_ + n};
    elements_ += (n + kFlatAlign - 1) / kFlatAlign * kFlatAlign;
  }
}

}  // namespace ds::nn
