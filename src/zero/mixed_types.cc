// The part of ParameterState for parameters that are computed with in fp32 where others are
// computed with in a lower type: own ones that a program registered so, such as adapters beside a
// bf16 base.
//
// They have buckets of their own. Masters, copies in the lower type and optimizer state cover them
// as they cover all others; where the masters do not lie as weights must, fp32 copies follow them.
#include "ops/elementwise.h"
#include "ops/split_master.h"
#include "zero/parameter_state.h"

namespace ds::zero {

void ParameterState::allocate_fp32_weights(bool shared) {
  const bool compact = weights().compact;
  if (flat_.masters && flat_.masters.compact == compact) return;  // they are the weights
  int64_t elements = 0;
  fp32_begins_.assign(layout_.buckets().size(), 0);
  for (size_t i = 0; i < fp32_begins_.size(); ++i) {
    const Bucket& bucket = layout_.buckets()[i];
    if (!in_fp32(bucket)) continue;
    fp32_begins_[i] = elements;
    elements += compact ? bucket.piece : bucket.range.elements();
  }
  if (elements == 0) return;
  fp32_weights_ =
      shared && stage_ > 0
          ? groups_.shard->shared_tensor(device_, DType::kFloat32, {elements},
                                         MemoryTag::kParameters, {.label = "fp32 weights"})
          : Tensor::zeros(device_, DType::kFloat32, {elements}, MemoryTag::kParameters);
}

Tensor ParameterState::whole_weights(const Bucket& bucket) const {
  const int64_t n = bucket.range.elements();
  if (in_fp32(bucket) && fp32_weights_) {
    const auto index = static_cast<size_t>(&bucket - layout_.buckets().data());
    return fp32_weights_.slice(0, fp32_begins_[index], fp32_begins_[index] + n);
  }
  const optim::FlatTensor& all = in_fp32(bucket) ? flat_.masters : weights();
  return all.data.slice(0, bucket.range.begin, bucket.range.end);
}

Tensor ParameterState::weight_piece(const Bucket& bucket) const {
  if (!in_fp32(bucket)) return owned(weights(), bucket);
  if (!fp32_weights_) return owned(flat_.masters, bucket);
  const auto index = static_cast<size_t>(&bucket - layout_.buckets().data());
  const int64_t begin =
      fp32_begins_[index] + (weights().compact ? 0 : layout_.rank() * bucket.piece);
  return fp32_weights_.slice(0, begin, begin + bucket.piece);
}

Tensor ParameterState::model_view(nn::ParamId id) const {
  if (layout_.tiling(id) != nullptr || !in_fp32(bucket(id))) return view(weights().data, id);
  const FlatRange range = layout_.range(id);
  const int64_t begin = range.begin - bucket(id).range.begin;
  return whole_weights(bucket(id))
      .slice(0, begin, begin + range.elements())
      .view(parameters_[id].shape);
}

// From the masters; weights that are whole on all ranks have to be gathered then.
void ParameterState::write_fp32_weights(const OpContext& ctx, const Bucket& bucket) {
  if (!fp32_weights_) return;
  Tensor piece = weight_piece(bucket);
  if (flat_.masters) {
    ops::cast(ctx, owned(flat_.masters, bucket), piece);
  } else {
    ops::join_masters(ctx, owned(flat_.model, bucket), owned(flat_.low_halves, bucket), piece);
  }
}

void ParameterState::write_fp32_weights(const OpContext& ctx, bool frozen_too) {
  for (const Bucket& bucket : layout_.buckets()) {
    if (in_fp32(bucket) && (bucket.trainable || frozen_too)) write_fp32_weights(ctx, bucket);
  }
}

}  // namespace ds::zero
