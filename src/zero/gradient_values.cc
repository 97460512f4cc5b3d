#include "zero/gradient_values.h"

#include <cmath>
#include <limits>

#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/stored_array.h"
#include "tensor/transfer.h"

namespace ds::zero {
namespace {

// The caller's that are not reduced yet count no more.
void clear_held(const OpContext& ctx, Gradients& gradients, nn::ParamId id) {
  if (!gradients.held()) return;
  Tensor open = gradients.held().view(id);
  ops::fill(ctx, 0.0f, open);
}

// Those of elements [begin, end) of a parameter, where `device` is.
Tensor held_part(const Gradients& gradients, nn::ParamId id, int64_t begin, int64_t end,
                 const std::shared_ptr<Device>& device) {
  const Tensor open = gradients.held().view(id);
  return to_device(open.view({open.elements()}).slice(0, begin, end), device);
}

// What is wrong with a gradient, as ranks report it to each other.
enum class BadKind : int64_t { kNone, kNan, kInfinity, kMinusInfinity };

BadKind bad_kind(const OpContext& ctx, const Tensor& element) {
  Tensor number = ctx.workspace(DType::kFloat32, {1});
  ops::cast(ctx, element, number);
  const Tensor there = to_host(number, host_memory_of(ctx.device));
  const float value = *there.data<float>();
  if (std::isnan(value)) return BadKind::kNan;
  return value > 0 ? BadKind::kInfinity : BadKind::kMinusInfinity;
}

double value_of(BadKind kind) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  switch (kind) {
    case BadKind::kNan:
      return std::numeric_limits<double>::quiet_NaN();
    case BadKind::kInfinity:
      return kInfinity;
    case BadKind::kMinusInfinity:
      return -kInfinity;
    case BadKind::kNone:
      break;
  }
  return 0;
}

// Of a parameter in parts whose gradient lies whole on the ranks that hold it.
Tensor read_from_holder(const OpContext& ctx, const Gradients& gradients, nn::ParamId id) {
  const StateArrays& arrays = gradients.arrays();
  const Shape& shape = arrays.parameters[id].shape;
  Tensor out = Tensor::empty(ctx.device, DType::kFloat32, shape, MemoryTag::kOther);
  if (arrays.holds(id)) {
    ops::read_array(ctx, arrays.flat.gradients, arrays.layout.flat().range(id).begin, out);
  }
  arrays.send_whole(id, out);
  return out;
}

}  // namespace

Tensor read_gradient(const OpContext& ctx, const Gradients& gradients, nn::ParamId id) {
  const StateArrays& arrays = gradients.arrays();
  const optim::FlatTensor& all = arrays.flat.gradients;
  const Shape& shape = arrays.parameters[id].shape;
  const FlatRange range =
      all.compact ? arrays.owned_range(all, id) : arrays.layout.flat().range(id);
  const OpContext state_ctx = arrays.state_context(ctx);
  if (!all.compact && arrays.layout.in_parts(id)) return read_from_holder(state_ctx, gradients, id);
  Tensor out = Tensor::empty(state_ctx.device, DType::kFloat32,
                             all.compact ? Shape{range.elements()} : shape, MemoryTag::kOther);
  ops::read_array(state_ctx, all, range.begin, out);
  if (all.compact) out = arrays.gather_parts(state_ctx, id, out);
  if (gradients.held()) {
    ops::accumulate(state_ctx,
                    held_part(gradients, id, 0, shape.elements(), state_ctx.device).view(shape),
                    1.0f, out);
  }
  return out;
}

void write_gradient(const OpContext& ctx, Gradients& gradients, nn::ParamId id,
                    const Tensor& value) {
  gradients.before_change();
  const StateArrays& arrays = gradients.arrays();
  if (!arrays.holds(id)) return;
  clear_held(ctx, gradients, id);
  const optim::FlatTensor& all = arrays.flat.gradients;
  if (!all.compact && all.in_memory()) {
    Tensor target = arrays.view(all.memory(), id);
    return ops::cast(arrays.state_context(ctx), value, target);
  }
  const OpContext there = arrays.state_context(ctx);
  Tensor packed = there.workspace(value.dtype(), value.shape());
  ops::cast(there, value, packed);
  const Tensor flat = packed.view({packed.elements()});
  if (!all.compact) return ops::write_array(there, flat, all, arrays.layout.flat().range(id).begin);
  const OwnedPart part = arrays.layout.flat().part(id);
  ops::write_array(there, flat.slice(0, part.first, part.first + part.count), all,
                   arrays.owned_range(all, id).begin);
}

Tensor owned_gradient(const OpContext& ctx, const Gradients& gradients, nn::ParamId id) {
  const StateArrays& arrays = gradients.arrays();
  const optim::FlatTensor& all = arrays.flat.gradients;
  if (all.in_memory() && arrays.holds(id)) return arrays.owned(all, id);
  const FlatRange range = arrays.owned_range(all, id);
  Tensor out = ctx.workspace(all.dtype(), {range.elements()});
  ops::read_array(ctx, all, range.begin, out);
  return out;
}

void scale_owned_gradient(const OpContext& ctx, Gradients& gradients, nn::ParamId id,
                          float factor) {
  gradients.before_change();
  const StateArrays& arrays = gradients.arrays();
  const FlatRange range = arrays.owned_range(arrays.flat.gradients, id);
  ops::scale_array(arrays.state_context(ctx), arrays.flat.gradients, range.begin, range.end,
                   factor);
}

void read_owned_gradient(const OpContext& ctx, const Gradients& gradients, nn::ParamId id,
                         Tensor& out) {
  const StateArrays& arrays = gradients.arrays();
  if (!arrays.holds(id)) return;
  const optim::FlatTensor& all = arrays.flat.gradients;
  const OpContext there = arrays.state_context(ctx);
  ops::read_array(there, all, arrays.owned_range(all, id).begin, out);
  if (!gradients.held()) return;
  const OwnedPart part = arrays.layout.flat().part(id);
  ops::accumulate(there,
                  held_part(gradients, id, part.first, part.first + part.count, there.device), 1.0f,
                  out);
}

void write_owned_gradient(const OpContext& ctx, Gradients& gradients, nn::ParamId id,
                          const Tensor& values) {
  DS_CHECK(!gradients.deferred(), Code::kUnsupported,
           "gradients of the caller are averaged over ranks when the step is made: there is no "
           "part of the average to set before; set whole gradients (ds_engine_set_values)");
  gradients.before_change();
  const StateArrays& arrays = gradients.arrays();
  if (!arrays.holds(id)) return;
  clear_held(ctx, gradients, id);
  const optim::FlatTensor& all = arrays.flat.gradients;
  ops::write_array(arrays.state_context(ctx), values, all, arrays.owned_range(all, id).begin);
}

namespace {

// Where every rank has the gradients of all that it holds: those of a domain are added up over the
// ranks that hold its parameters together.
ExactSum squares_of_parts(const OpContext& ctx, const Gradients& gradients) {
  const StateArrays& arrays = gradients.arrays();
  std::vector<ExactSum> sums(arrays.groups.size());
  for (const Bucket& bucket : arrays.layout.flat().buckets()) {
    if (!bucket.trainable) continue;
    sums[static_cast<size_t>(bucket.domain)].add(ops::exact_squares(
        arrays.state_context(ctx), arrays.flat.gradients, bucket.range.begin, bucket.range.end));
  }
  ExactSum all;
  for (size_t i = 0; i < sums.size(); ++i) {
    const RankGroup& ranks = arrays.groups[i].model;
    all.add(ranks.size > 1 ? arrays.sum_over(ranks, sums[i]) : sums[i]);
  }
  return all;
}

}  // namespace

ExactSum gradient_squares(const OpContext& ctx, const Gradients& gradients) {
  const StateArrays& arrays = gradients.arrays();
  const optim::FlatTensor& all = arrays.flat.gradients;
  if (all.compact || !arrays.shared() || arrays.layout.stage() == 0) {
    gradients.check_materialized();
    if (!all.compact && arrays.layout.in_parts()) return squares_of_parts(ctx, gradients);
    ExactSum sum = ops::exact_squares(arrays.state_context(ctx), all, 0, all.elements());
    return all.compact ? arrays.sum_over_ranks(sum) : sum;
  }
  ExactSum sum;
  for (const Bucket& bucket : arrays.layout.flat().buckets()) {
    if (!bucket.trainable) continue;
    const FlatRange own = arrays.owned_range(all, bucket);
    sum.add(ops::exact_squares(ctx, all, own.begin, own.end));
  }
  return arrays.sum_over_ranks(sum);
}

// Ranks compare places in the order of the parameters, each of which begins where the one before
// ended; the kind of value is known to the rank that holds the first place.
BadGradient first_bad_gradient(const OpContext& ctx, const Gradients& gradients) {
  const StateArrays& arrays = gradients.arrays();
  const nn::ParameterSet& parameters = arrays.parameters;
  const OpContext there = arrays.state_context(ctx);
  const int64_t none = parameters.elements();
  int64_t place = none, begin = 0;
  BadKind kind = BadKind::kNone;
  for (nn::ParamId id = 0; id < parameters.size() && place == none; ++id) {
    const int64_t here = begin;
    begin += parameters[id].shape.elements();
    if (!parameters[id].trainable || !arrays.holds(id)) continue;
    const FlatRange own = arrays.owned_range(arrays.flat.gradients, id);
    const auto look = [&](const Tensor& part, int64_t from) {
      const int64_t at = place == none ? ops::first_non_finite(there, part) : -1;
      if (at < 0) return;
      place = here + arrays.layout.flat().part(id).first + from + at;
      kind = bad_kind(there, part.slice(0, at, at + 1));
    };
    arrays.flat.gradients.for_parts(own.begin, own.end, Access::kRead, look);
  }
  if (arrays.shared() && (arrays.layout.stage() > 0 || arrays.layout.in_parts())) {
    const int64_t own_place = place;
    place = arrays.agree(place, ReduceOp::kMin);
    const BadKind own_kind = own_place == place ? kind : BadKind::kNone;
    kind = static_cast<BadKind>(arrays.agree(static_cast<int64_t>(own_kind), ReduceOp::kMax));
  }
  if (place == none) return {};
  BadGradient bad{0, place, value_of(kind)};
  while (bad.element >= parameters[bad.id].shape.elements()) {
    bad.element -= parameters[bad.id++].shape.elements();
  }
  return bad;
}

}  // namespace ds::zero
