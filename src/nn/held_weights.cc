#include "nn/held_weights.h"

#include <utility>

#include "ops/elementwise.h"
#include "tensor/transfer.h"

namespace ds::nn {

HeldWeights::HeldWeights(const ParameterSet& parameters, std::shared_ptr<Device> device,
                         std::shared_ptr<const WeightLoader> loader)
    : parameters_(parameters), device_(std::move(device)), order_(parameters), whole_(parameters) {
  whole_.loader = std::move(loader);
  if (whole_.loader) return;
  whole_.array =
      Tensor::zeros(device_, DType::kFloat32, {order_.elements()}, MemoryTag::kParameters);
}

HeldWeights::HeldWeights(const ParameterSet& parameters, std::shared_ptr<Device> device,
                         WholeWeights whole)
    : parameters_(parameters),
      device_(std::move(device)),
      order_(parameters),
      whole_(std::move(whole)) {
  DS_CHECK(!whole_.array || whole_.array.elements() == order_.elements(), Code::kInternal,
           "weights are not of these parameters");
}

Tensor HeldWeights::view(ParamId id) const {
  const FlatRange range = order_.range(id);
  return whole_.array.slice(0, range.begin, range.end).view(parameters_[id].shape);
}

void HeldWeights::make(const OpContext& ctx) {
  check_not_lost();
  if (!whole_.loader) return;
  const Tensor all =
      Tensor::zeros(device_, DType::kFloat32, {order_.elements()}, MemoryTag::kParameters);
  for (const ParamId id : order_.order()) {
    const FlatRange range = order_.range(id);
    Tensor out = all.slice(0, range.begin, range.end);
    if (range.elements() > 0) fill_weights(*whole_.loader, ctx, id, parameters_[id], 0, out);
  }
  whole_.array = all;
  whole_.loader.reset();
}

ParameterReader& HeldWeights::reader() {
  check_not_lost();
  if (whole_.host) {
    const Tensor there =
        Tensor::empty(device_, DType::kFloat32, whole_.array.shape(), MemoryTag::kParameters);
    copy_tensor(whole_.array, there);
    whole_.array = there;
    whole_.host.reset();
  }
  return *this;
}

void HeldWeights::check_not_lost() const {
  if (whole_.lost) fail_lost();
}

// One parameter is no reason to make all.
Tensor HeldWeights::read(const OpContext& ctx, ParamId id) const {
  check_not_lost();
  if (!whole_.loader) return view(id);
  const Shape& shape = parameters_[id].shape;
  const Tensor value = Tensor::empty(device_, DType::kFloat32, shape, MemoryTag::kOther);
  Tensor out = value.view({shape.elements()});
  if (out.elements() > 0) fill_weights(*whole_.loader, ctx, id, parameters_[id], 0, out);
  return value;
}

void HeldWeights::read_in_parts(const OpContext& ctx, ParamId id, int64_t unit,
                                const PartTaker& take) const {
  check_not_lost();
  if (!whole_.loader) return ModelWeights::read_in_parts(ctx, id, unit, take);
  load_in_parts(*whole_.loader, {device_, ctx.pool}, id, parameters_[id], part_elements(unit),
                take);
}

void HeldWeights::write(const OpContext& ctx, ParamId id, const Tensor& value) {
  make(ctx);
  const OpContext there = context(ctx);
  const Tensor own = to_device(value, there.device);
  Tensor master = view(id);
  ops::cast(there, own, master);
  whole_.borrowed.write(there, id, own);
}

Tensor HeldWeights::view(const OpContext& ctx, ParamId id) {
  make(ctx);
  return view(id);
}

WholeWeights HeldWeights::take(const OpContext&) {
  return std::exchange(whole_, WholeWeights(parameters_));
}

Tensor HeldWeights::acquire(ParamId id) {
  check_not_lost();
  DS_CHECK(whole_.array, Code::kInternal, "weights are read that were not made");
  return view(id);
}

}  // namespace ds::nn
