#include "zero/flat_layout.h"

#include <algorithm>

namespace ds::zero {

FlatLayout::FlatLayout(const nn::ParameterSet& parameters)
    : ranges_(static_cast<size_t>(parameters.size())) {
  const auto place = [&](bool trainable, bool decays) {
    const int64_t begin = elements_;
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      const nn::Parameter& p = parameters[id];
      if (p.trainable != trainable || (trainable && p.decays != decays)) continue;
      const int64_t n = p.shape.elements();
      ranges_[static_cast<size_t>(id)] = {elements_, elements_ + n};
      elements_ += (n + kAlign - 1) / kAlign * kAlign;
    }
    if (elements_ > begin) groups_.push_back({{begin, elements_}, decays, trainable});
  };
  place(true, true);
  place(true, false);
  trainable_elements_ = elements_;
  place(false, false);
}

nn::ParamId FlatLayout::parameter_at(int64_t index) const {
  for (size_t id = 0; id < ranges_.size(); ++id) {
    if (index >= ranges_[id].begin && index < ranges_[id].end) return static_cast<nn::ParamId>(id);
  }
  return nn::kNoParam;
}

FlatRange FlatLayout::shard(int rank, int world) const {
  const int64_t blocks = (trainable_elements_ + kAlign - 1) / kAlign;
  const int64_t part = (blocks + world - 1) / world * kAlign;
  return {std::min(rank * part, trainable_elements_),
          std::min((rank + 1) * part, trainable_elements_)};
}

}  // namespace ds::zero
