#include "zero/gradient_sums.h"

#include "ops/elementwise.h"
#include "ops/stored_array.h"

namespace ds::zero {

void GradientSums::begin(const OpContext& ctx, DType type, bool mapped) {
  const auto count = static_cast<size_t>(arrays_.parameters.size());
  ctx_ = ctx;
  type_ = type;
  mapped_.clear();
  if (mapped && type == DType::kFloat32) mapped_.resize(count);
  open_.assign(type == DType::kFloat32 ? 0 : count, Tensor());
}

void GradientSums::drop() {
  for (Tensor& open : open_) open = Tensor();
  for (ArrayLease& mapped : mapped_) mapped = ArrayLease();
}

nn::GradientTarget GradientSums::target(nn::ParamId id, const HeldGradients* held) {
  const optim::FlatTensor& all = arrays_.flat.gradients;
  DS_CHECK(all, Code::kInternal, "backward without gradient buffers");
  if (type_ == DType::kFloat32) {
    if (held != nullptr) return {held->view(id), true};
    if (!all.in_memory()) return mapped_target(id);
    return {arrays_.view(all.memory(), id), !marks_.take_empty(id)};
  }
  Tensor& sum = open_[static_cast<size_t>(id)];
  const bool add = static_cast<bool>(sum);
  if (!add) {
    sum = Tensor::empty(arrays_.device, DType::kFloat32, arrays_.parameters[id].shape,
                        MemoryTag::kGradients);
  }
  return {sum, add};
}

// From the first use of the parameter in a backward to the last one.
nn::GradientTarget GradientSums::mapped_target(nn::ParamId id) {
  ArrayLease& mapped = mapped_[static_cast<size_t>(id)];
  const bool add = mapped || !marks_.take_empty(id);
  if (!mapped) {
    const FlatRange range = arrays_.layout.flat().range(id);
    mapped = arrays_.flat.gradients.map(range.begin, range.end,
                                        add ? Access::kReadWrite : Access::kWrite);
  }
  return {mapped.data().view(arrays_.parameters[id].shape), add};
}

void GradientSums::close_mapped() {
  for (ArrayLease& mapped : mapped_) mapped.close();
}

void GradientSums::complete(nn::ParamId id, const HeldGradients* held) {
  if (type_ == DType::kFloat32) {
    if (!mapped_.empty()) mapped_[static_cast<size_t>(id)].close();
    return;
  }
  Tensor& sum = open_[static_cast<size_t>(id)];
  if (!sum) return;
  add(id, sum, held);
  sum = Tensor();
}

void GradientSums::add(nn::ParamId id, const Tensor& sum, const HeldGradients* held) {
  if (held != nullptr) {
    Tensor target = held->view(id);
    return ops::accumulate(ctx_, sum, 1.0f, target);
  }
  const optim::FlatTensor& all = arrays_.flat.gradients;
  const int64_t begin = arrays_.layout.flat().range(id).begin;
  if (marks_.take_empty(id)) {
    ops::write_array(ctx_, sum, all, begin);
  } else {
    ops::accumulate_array(ctx_, sum, all, begin);
  }
}

}  // namespace ds::zero
