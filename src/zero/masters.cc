#include "zero/masters.h"

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/stored_array.h"
#include "tensor/transfer.h"

namespace ds::zero {

Masters::Masters(StateArrays& arrays, Weights& weights,
                 std::shared_ptr<const nn::WeightLoader> loader)
    : arrays_(arrays), weights_(weights), loader_(std::move(loader)) {
  if (loader_ || arrays_.flat.masters) return;
  arrays_.flat.masters = Tensor::zeros(arrays_.device, DType::kFloat32,
                                       {arrays_.layout.flat().elements()}, MemoryTag::kParameters);
}

void Masters::make(const OpContext& ctx) {
  if (!loader_) return;
  const Tensor all = Tensor::zeros(arrays_.device, DType::kFloat32,
                                   {arrays_.layout.flat().elements()}, MemoryTag::kParameters);
  for (const nn::ParamId id : arrays_.layout.flat().order()) {
    const FlatRange range = arrays_.layout.flat().range(id);
    Tensor out = all.slice(0, range.begin, range.end);
    if (range.elements() > 0) fill_weights(*loader_, ctx, id, arrays_.parameters[id], 0, out);
  }
  arrays_.flat.masters = all;
  loader_.reset();
}

Tensor Masters::read(const OpContext& ctx, nn::ParamId id) const {
  weights_.check_not_lost();
  const Shape& shape = arrays_.parameters[id].shape;
  if (loader_) {
    const Tensor value = Tensor::empty(arrays_.device, DType::kFloat32, shape, MemoryTag::kOther);
    Tensor out = value.view({shape.elements()});
    if (out.elements() > 0) fill_weights(*loader_, ctx, id, arrays_.parameters[id], 0, out);
    return value;
  }
  arrays_.before_reading();
  if (!arrays_.whole_masters()) {
    const Tensor own = read_owned(ctx, id);
    return arrays_.is_shared(id) ? arrays_.gather_parts(arrays_.state_context(ctx), id, own)
                                 : own.view(shape);
  }
  if (arrays_.layout.in_parts(id)) {
    Tensor value = ctx.workspace(DType::kFloat32, shape);
    if (arrays_.holds(id)) ops::cast(ctx, view(id), value);
    arrays_.send_whole(id, value);
    return value;
  }
  if (arrays_.masters_in_place()) return view(id);
  Tensor widened = ctx.workspace(DType::kFloat32, shape);
  ops::cast(ctx, view(id), widened);
  return widened;
}

Tensor Masters::read_owned(const OpContext& ctx, nn::ParamId id) const {
  arrays_.before_reading_masters();
  const optim::FlatTensors& flat = arrays_.flat;
  const OpContext state_ctx = arrays_.state_context(ctx);
  if (!arrays_.holds(id)) return state_ctx.workspace(DType::kFloat32, {0});
  if (arrays_.masters_in_place()) return arrays_.owned(flat.masters, id);
  Tensor out = state_ctx.workspace(DType::kFloat32, {arrays_.layout.flat().part(id).count});
  read_owned(ctx, id, 0, out);
  return out;
}

void Masters::read_owned(const OpContext& ctx, nn::ParamId id, int64_t at, Tensor& out) const {
  const optim::FlatTensors& flat = arrays_.flat;
  const OpContext state_ctx = arrays_.state_context(ctx);
  if (flat.masters) {
    const int64_t begin = arrays_.owned_range(flat.masters, id).begin;
    return ops::read_array(state_ctx, flat.masters, begin + at, out);
  }
  ops::SplitRange from = arrays_.split_range(id);
  from.weights_begin += at;
  from.low_begin += at;
  ops::join_from_arrays(state_ctx, from, out);
}

bool Masters::read_in_parts(const OpContext& ctx, nn::ParamId id, int64_t part,
                            const nn::ModelWeights::PartTaker& take) const {
  weights_.check_not_lost();
  if (loader_) {
    load_in_parts(*loader_, {arrays_.device, ctx.pool}, id, arrays_.parameters[id], part, take);
    return true;
  }
  if (arrays_.masters_in_place() || arrays_.layout.flat().cut() || arrays_.layout.in_parts()) {
    return false;
  }
  arrays_.before_reading_masters();
  const int64_t n = arrays_.layout.flat().part(id).count;
  if (n == 0) return true;
  const Tensor memory = arrays_.state_context(ctx).workspace(DType::kFloat32, {std::min(n, part)});
  for (int64_t at = 0, next; at < n; at = next) {
    next = std::min(n, at + part);
    Tensor values = memory.slice(0, 0, next - at);
    read_owned(ctx, id, at, values);
    take(values, at);
  }
  return true;
}

void Masters::write_owned(const OpContext& ctx, nn::ParamId id, int64_t at, const Tensor& value) {
  if (!arrays_.holds(id)) return;
  const OpContext state_ctx = arrays_.state_context(ctx);
  const optim::FlatTensors& flat = arrays_.flat;
  arrays_.before_reading();
  if (arrays_.sync_masters) arrays_.sync_masters(true);
  arrays_.hold_masters();
  if (flat.masters) {
    return ops::write_array(state_ctx, value, flat.masters,
                            arrays_.owned_range(flat.masters, id).begin + at);
  }
  ops::SplitRange to = arrays_.split_range(id);
  to.weights_begin += at;
  to.low_begin += at;
  ops::split_to_arrays(state_ctx, value, to);
}

void Masters::write(const OpContext& ctx, nn::ParamId id, const Tensor& value) {
  if (!arrays_.holds(id)) return;
  const OwnedPart part = arrays_.layout.flat().part(id);
  const Tensor own = to_device(value, arrays_.state_context(ctx).device)
                         .view({value.elements()})
                         .slice(0, part.first, part.first + part.count);
  write_owned(ctx, id, 0, own);
  weights_.follow_master(ctx, id, value);
}

}  // namespace ds::zero
