// The part of ParameterState for gradients that the caller gives, and for whole gradients that it
// reads and sets.
#include "ops/elementwise.h"
#include "zero/parameter_state.h"

namespace ds::zero {

void ParameterState::add_external_gradient(const OpContext& ctx, nn::ParamId id,
                                           const Tensor& value) {
  nn::GradientTarget target = gradient_target(id);
  if (target.add) {
    ops::accumulate(ctx, value, 1.0f, target.sum);
  } else {
    ops::cast(ctx, value, target.sum);
  }
  gradient_complete(id);
}

void ParameterState::finish_external_micro_batch(const OpContext& ctx) {
  if (reducer_) return finish_backward();
  reduce_held_gradients(ctx);
}

void ParameterState::hold_external_gradients() {
  if (!comm_ || micro_) return;
  micro_ = comm_->shared_tensor(device_, accumulation_type_, {layout_.trainable_elements()},
                                MemoryTag::kGradients, {.label = "given gradients"});
}

void ParameterState::reduce_held_gradients(const OpContext& ctx) {
  if (!micro_) return;
  materialize_gradients(ctx);
  std::vector<WorkPtr> works;
  const auto piece = [&](const Bucket& bucket) {
    const FlatRange own = stage_ == 0 ? bucket.range : layout_.piece(bucket, layout_.rank());
    return micro_.slice(0, own.begin, own.end);
  };
  for (const Bucket& bucket : layout_.buckets()) {
    if (!bucket.trainable) continue;
    const Tensor all = micro_.slice(0, bucket.range.begin, bucket.range.end);
    const CollectiveOptions options{.label = parameters_[layout_.order()[bucket.first]].name};
    works.push_back(stage_ == 0 ? comm_->all_reduce(all, op_, options)
                                : comm_->reduce_scatter(piece(bucket), all, op_, options));
  }
  for (const WorkPtr& work : works) work->wait();
  for (const Bucket& bucket : layout_.buckets()) {
    if (!bucket.trainable) continue;
    Tensor target = kept_gradients(bucket);
    ops::accumulate(ctx, piece(bucket), 1.0f, target);
  }
  ops::fill(ctx, 0.0f, micro_);
  backward_held_ = false;
}

void ParameterState::reduce_open_gradients() {
  if (reducer_) reducer_->finish();
}

void ParameterState::reduce_external_gradients() {
  if (!comm_ || !deferred_gradients_ || micro_) return;
  std::vector<WorkPtr> works;
  for (const Bucket& bucket : layout_.buckets()) {
    if (!bucket.trainable) continue;
    const Tensor all = flat_.gradients.data.slice(0, bucket.range.begin, bucket.range.end);
    const CollectiveOptions options{.label = parameters_[layout_.order()[bucket.first]].name};
    works.push_back(stage_ == 0
                        ? comm_->all_reduce(all, op_, options)
                        : comm_->reduce_scatter(owned(flat_.gradients, bucket), all, op_, options));
  }
  for (const WorkPtr& work : works) work->wait();
}

Tensor ParameterState::read_gradient(const OpContext& ctx, nn::ParamId id) const {
  const bool whole = !flat_.gradients.compact;
  const Tensor source = whole ? view(flat_.gradients.data, id) : owned(flat_.gradients, id);
  const OpContext state_ctx = state_context(ctx);
  Tensor out = Tensor::empty(state_ctx.device, DType::kFloat32, source.shape(), MemoryTag::kOther);
  ops::cast(state_ctx, source, out);
  if (!whole) out = gather_parts(ctx, id, out);
  if (micro_) ops::accumulate(ctx, view(micro_, id), 1.0f, out);
  return out;
}

void ParameterState::write_gradient(const OpContext& ctx, nn::ParamId id, const Tensor& value) {
  if (micro_) {
    Tensor open = view(micro_, id);
    ops::fill(ctx, 0.0f, open);
  }
  if (!flat_.gradients.compact) {
    Tensor target = view(flat_.gradients.data, id);
    return ops::cast(state_context(ctx), value, target);
  }
  const Tensor dense = ctx.workspace(value.dtype(), value.shape());
  Tensor packed = dense;
  ops::cast(ctx, value, packed);
  const OwnedPart part = layout_.part(id);
  Tensor target = owned(flat_.gradients, id);
  ops::cast(ctx, packed.view({packed.elements()}).slice(0, part.first, part.first + part.count),
            target);
}

void ParameterState::read_owned_gradient(const OpContext& ctx, nn::ParamId id, Tensor& out) const {
  ops::cast(state_context(ctx), owned(flat_.gradients, id), out);
  if (!micro_) return;
  const OwnedPart part = layout_.part(id);
  const Tensor open = view(micro_, id).view({parameters_[id].shape.elements()});
  ops::accumulate(ctx, open.slice(0, part.first, part.first + part.count), 1.0f, out);
}

void ParameterState::write_owned_gradient(const OpContext& ctx, nn::ParamId id,
                                          const Tensor& values) {
  DS_CHECK(!comm_ || !deferred_gradients_, Code::kUnsupported,
           "gradients of the caller are averaged over ranks when the step is made: there is no "
           "part of the average to set before; set whole gradients (ds_engine_set_values)");
  if (micro_) {
    Tensor open = view(micro_, id);
    ops::fill(ctx, 0.0f, open);
  }
  Tensor target = owned(flat_.gradients, id);
  ops::cast(state_context(ctx), values, target);
}

}  // namespace ds::zero
