#include "zero/fp32_weights.h"

#include "ops/stored_array.h"

namespace ds::zero {

void Fp32Weights::allocate() {
  const bool compact = arrays_.weights().compact;
  const optim::FlatTensors& flat = arrays_.flat;
  if (flat.masters.in_memory() && flat.masters.compact == compact) return;
  int64_t elements = 0;
  begins_.assign(arrays_.layout.flat().buckets().size(), 0);
  for (size_t i = 0; i < begins_.size(); ++i) {
    const Bucket& bucket = arrays_.layout.flat().buckets()[i];
    if (!arrays_.in_fp32(bucket)) continue;
    begins_[i] = elements;
    elements += compact ? bucket.piece : bucket.range.elements();
  }
  if (elements == 0) return;
  copies_ =
      arrays_.shared() && arrays_.layout.stage() > 0
          ? arrays_.shard_ranks()->shared_tensor(arrays_.device, DType::kFloat32, {elements},
                                                 MemoryTag::kParameters, {.label = "fp32 weights"})
          : Tensor::zeros(arrays_.device, DType::kFloat32, {elements}, MemoryTag::kParameters);
}

Tensor Fp32Weights::whole(const Bucket& bucket) const {
  if (!copied())
    return arrays_.flat.masters.memory().slice(0, bucket.range.begin, bucket.range.end);
  const int64_t begin = begins_[arrays_.index_of(bucket)];
  return copies_.slice(0, begin, begin + bucket.range.elements());
}

Tensor Fp32Weights::piece(const Bucket& bucket) const {
  if (!copied()) return arrays_.owned(arrays_.flat.masters, bucket);
  const int64_t before =
      arrays_.weights().compact ? 0 : arrays_.layout.flat().rank(bucket) * bucket.piece;
  const int64_t begin = begins_[arrays_.index_of(bucket)] + before;
  return copies_.slice(0, begin, begin + bucket.piece);
}

void Fp32Weights::write(const OpContext& ctx, const Bucket& bucket) {
  if (!copied()) return;
  Tensor to = piece(bucket);
  arrays_.before_reading_masters();
  const optim::FlatTensors& flat = arrays_.flat;
  if (flat.masters) {
    return ops::read_array(ctx, flat.masters, arrays_.owned_range(flat.masters, bucket).begin, to);
  }
  ops::join_from_arrays(ctx, arrays_.split_range(bucket), to);
}

void Fp32Weights::write_all(const OpContext& ctx, bool frozen_too) {
  for (const Bucket& bucket : arrays_.layout.flat().buckets()) {
    if (arrays_.in_fp32(bucket) && (bucket.trainable || frozen_too)) write(ctx, bucket);
  }
}

}  // namespace ds::zero
