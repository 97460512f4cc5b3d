#include "zero/held_gradients.h"

#include "ops/elementwise.h"
#include "ops/stored_array.h"

namespace ds::zero {

FlatRange kept_range(const optim::FlatTensor& gradients, const Bucket& bucket) {
  if (gradients.compact) return {bucket.owned, bucket.owned + bucket.piece};
  return bucket.range;
}

void HeldGradients::allocate(DType type) {
  all_ = arrays_.all_ranks()->shared_tensor(arrays_.device, type,
                                            {arrays_.layout.flat().trainable_elements()},
                                            MemoryTag::kGradients, {.label = "given gradients"});
}

void HeldGradients::clear(const OpContext& ctx) { ops::fill(ctx, 0.0f, all_); }

Tensor HeldGradients::kept(const Bucket& bucket) const {
  const FlatLayout& layout = arrays_.layout.flat();
  const FlatRange own =
      arrays_.layout.stage() == 0 ? bucket.range : layout.piece(bucket, layout.rank(bucket));
  return all_.slice(0, own.begin, own.end);
}

void HeldGradients::reduce_into(const OpContext& ctx, ReduceOp op, optim::FlatTensor& sums) {
  const FlatLayout& layout = arrays_.layout.flat();
  std::vector<WorkPtr> works;
  for (const Bucket& bucket : layout.buckets()) {
    if (!bucket.trainable) continue;
    const Tensor whole = all_.slice(0, bucket.range.begin, bucket.range.end);
    const CollectiveOptions options{.label = arrays_.parameters[layout.order()[bucket.first]].name};
    const RankGroup& ranks = arrays_.ranks(bucket);
    works.push_back(arrays_.layout.stage() == 0
                        ? ranks->all_reduce(whole, op, options)
                        : ranks->reduce_scatter(kept(bucket), whole, op, options));
  }
  for (const WorkPtr& work : works) work->wait();
  for (const Bucket& bucket : layout.buckets()) {
    if (!bucket.trainable) continue;
    if (const float share = arrays_.share_of_mean(bucket); share != 1 && op == ReduceOp::kAverage) {
      Tensor own = kept(bucket);
      ops::scale(ctx, own, share, own);
    }
    add_kept(ctx, bucket, sums);
  }
  clear(ctx);
}

void HeldGradients::add_kept(const OpContext& ctx, const Bucket& bucket,
                             optim::FlatTensor& sums) const {
  const FlatRange to = kept_range(sums, bucket);
  HostStore* const store = arrays_.host_store.get();
  if (store == nullptr) return ops::accumulate_array(ctx, kept(bucket), sums, to.begin);
  const auto read =
      store->receive(kept(bucket), {static_cast<const StoredArray&>(sums), to.begin, /*add=*/true});
  if (read) arrays_.device->default_stream().wait(*read);  // before they are cleared
}

}  // namespace ds::zero
