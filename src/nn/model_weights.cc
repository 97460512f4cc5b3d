#include "nn/model_weights.h"

#include <algorithm>

namespace ds::nn {

int64_t part_elements(int64_t unit) {
  constexpr int64_t kElements = int64_t{1} << 20;
  return std::max<int64_t>(1, kElements / unit) * unit;
}

void ModelWeights::read_in_parts(const OpContext& ctx, ParamId id, int64_t /*unit*/,
                                 const PartTaker& take) const {
  const Tensor value = read(ctx, id);
  if (value.elements() > 0) take(value.view({value.elements()}), 0);
}

}  // namespace ds::nn
