#include "zero/new_masters.h"

#include <algorithm>

#include "ops/stored_array.h"

namespace ds::zero {

FlatRange NewMasters::wanted(const FlatLayout& layout, nn::ParamId id) const {
  if (!layout.holds(id)) return {};
  if (!compact()) return {0, layout.shape(id).elements()};
  const OwnedPart part = layout.part(id);
  return {part.first, part.first + part.count};
}

// Where a parameter's element lies in an array.
int64_t NewMasters::place(const optim::FlatTensor& array, const FlatLayout& layout, nn::ParamId id,
                          int64_t begin) const {
  if (!array.compact) return layout.range(id).begin + begin;
  const OwnedPart part = layout.part(id);
  return part.owned + begin - part.first;
}

void NewMasters::write(const OpContext& ctx, const FlatLayout& layout, nn::ParamId id,
                       int64_t begin, const Tensor& values) const {
  if (masters_) {
    return ops::write_array(ctx, values, masters_, place(masters_, layout, id, begin));
  }
  ops::split_to_arrays(ctx, values,
                       {model_, place(model_, layout, id, begin), low_halves_,
                        place(low_halves_, layout, id, begin)});
}

void NewMasters::fill(const OpContext& ctx, const FlatLayout& layout,
                      const nn::ParameterSet& parameters, const nn::WeightLoader& loader) const {
  constexpr int64_t kPiece = int64_t{4} << 20;  // elements in fp32 at a time
  int64_t largest = 0;
  for (const nn::ParamId id : layout.order()) {
    largest = std::max(largest, wanted(layout, id).elements());
  }
  Tensor memory;
  for (const nn::ParamId id : layout.order()) {
    const FlatRange range = wanted(layout, id);
    if (range.elements() == 0) continue;
    if (masters_ && masters_.dtype() == DType::kFloat32) {
      const int64_t to = place(masters_, layout, id, range.begin);
      masters_.for_parts(to, to + range.elements(), Access::kWrite, [&](Tensor& part, int64_t at) {
        nn::fill_weights(loader, ctx, id, parameters[id], range.begin + at, part, compact());
      });
      continue;
    }
    if (!memory) memory = ctx.workspace(DType::kFloat32, {std::min(largest, kPiece)});
    for (int64_t at = range.begin, next; at < range.end; at = next) {
      next = std::min(range.end, at + kPiece);
      Tensor piece = memory.slice(0, 0, next - at);
      nn::fill_weights(loader, ctx, id, parameters[id], at, piece, compact());
      write(ctx, layout, id, at, piece);
    }
  }
}

}  // namespace ds::zero
