#include "zero/gradients.h"

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/stored_array.h"

namespace ds::zero {
namespace {

// Also before there are threads to compute with.
void clear_memory(const OpContext& ctx, Device& device, Tensor memory) {
  if (ctx.pool != nullptr) {
    ops::fill(ctx, 0.0f, memory);
  } else {
    device.clear(memory.raw(), memory.bytes(), device.default_stream());
  }
}

// Where the gradients of a domain lie, whose buckets follow each other.
FlatRange range_of(const FlatLayout& layout, const optim::FlatTensor& gradients, int domain) {
  FlatRange out;
  for (const Bucket& bucket : layout.buckets()) {
    if (!bucket.trainable || bucket.domain != domain) continue;
    const FlatRange kept = kept_range(gradients, bucket);
    if (out.elements() == 0) out.begin = kept.begin;
    out.end = kept.end;
  }
  return out;
}

}  // namespace

Gradients::Gradients(StateArrays& arrays)
    : arrays_(arrays),
      marks_(arrays.parameters),
      sums_(arrays, marks_),
      recording_(marks_, sums_, reducer_),
      held_(arrays) {}

// ---- as backward gives them ----

nn::GradientTarget Gradients::gradient_target(nn::ParamId id) {
  if (!arrays_.parameters[id].trainable) return {};
  marks_.set_given(id);
  DS_CHECK(arrays_.layout.flat().tiling(id) == nullptr, Code::kUnsupported, "the gradient of ",
           arrays_.parameters[id].name,
           " is nowhere whole while it is reduced in tiles; without stage3_tile_size it is");
  if (reducer_ && !backward_held_) return reducer_->target(id);
  return sums_.target(id, holder());
}

Tensor Gradients::gradient(nn::ParamId id) {
  nn::GradientTarget target = gradient_target(id);
  if (target.add || !target.sum) return target.sum;
  if (!reducer_ && accumulation_type() == DType::kFloat32) {
    clear_memory(ctx_, *arrays_.device, target.sum);
  } else {
    ops::fill(ctx_, 0.0f, target.sum);
  }
  return target.sum;
}

void Gradients::gradient_complete(nn::ParamId id) {
  if (!arrays_.parameters[id].trainable) return;
  if (reducer_ && !backward_held_) {
    const nn::Tiling* const tiles = arrays_.layout.flat().tiling(id);
    for (int64_t i = 0; i < (tiles ? tiles->count : 1); ++i) reducer_->complete(id, i);
    return;
  }
  sums_.complete(id, holder());
  if (tells_complete() && !reducer_) complete_(id);
}

nn::GradientTarget Gradients::tile_gradient(nn::ParamId id, int64_t tile) {
  if (!arrays_.parameters[id].trainable) return {};
  marks_.set_given(id);
  return reducer_->target(id, tile);
}

void Gradients::tile_gradient_complete(nn::ParamId id, int64_t tile) {
  if (arrays_.parameters[id].trainable) reducer_->complete(id, tile);
}

// ---- memory ----

void Gradients::allocate(const OpContext& ctx, DType type) {
  const bool at_once = deferred() && !by_micro_batch_;
  const FlatLayout& layout = arrays_.layout.flat();
  const bool compact = arrays_.layout.spread(StateRole::kGradients) && !at_once;
  const int64_t elements =
      at_once ? layout.trainable_elements() : arrays_.layout.held(StateRole::kGradients);
  const bool stored = arrays_.stores(optim::ArrayRole::kGradients);
  DS_CHECK(
      !stored || !at_once, Code::kUnsupported,
      "gradients of the caller travel between ranks from where they lie, which must be memory");
  if (stored) {
    arrays_.flat.gradients =
        arrays_.make_stored({optim::ArrayRole::kGradients, "gradients", type, elements}, compact);
  } else if (at_once) {  // the caller's travel from where they lie
    arrays_.flat.gradients = {
        arrays_.all_ranks()->shared_tensor(arrays_.device, type, {elements}, MemoryTag::kGradients,
                                           {.label = "gradients"}),
        compact};
  } else {
    arrays_.flat.gradients = {
        Tensor::zeros(arrays_.state_memory(), type, {elements}, MemoryTag::kGradients), compact};
  }
  ctx_ = ctx;
  sums_.begin(ctx, type, stored && !reducer_);
  if (deferred() && by_micro_batch_) hold_whole();
  marks_.set_none_empty();
  if (reducer_) empty_buckets_.assign(layout.buckets().size(), true);
  views_exposed_ = false;
}

void Gradients::free() {
  if (arrays_.host_store) arrays_.host_store->drop();
  sums_.begin({}, DType::kFloat32, false);
  arrays_.flat.gradients = {};
  held_.free();
  ctx_ = {};
  marks_.set_none_empty();
}

void Gradients::clear(const OpContext& ctx) {
  before_change();
  complete_ = nullptr;
  sums_.drop();
  marks_.clear_given();
  if (held_) held_.clear(ctx);
  backward_held_ = false;
  if (reducer_) {
    reducer_->drop();
    replicas_agree_ = true;
  }
  HostStore* const store = arrays_.host_store.get();
  if (store != nullptr && store->receiving()) store->drop();
  if (views_exposed_) {
    Tensor all = arrays_.flat.gradients.memory();
    return ops::fill(arrays_.state_context(ctx), 0.0f, all);
  }
  if (reducer_) {
    empty_buckets_.assign(arrays_.layout.flat().buckets().size(), true);
    return;
  }
  marks_.set_all_empty();
}

void Gradients::materialize(const OpContext& ctx) {
  if (arrays_.host_store) arrays_.host_store->finish_arrivals();
  for (size_t i = 0; i < empty_buckets_.size(); ++i) {
    const Bucket& bucket = arrays_.layout.flat().buckets()[i];
    if (!empty_buckets_[i] || !bucket.trainable) continue;
    const FlatRange kept = kept_range(arrays_.flat.gradients, bucket);
    ops::fill_array(arrays_.state_context(ctx), 0.0f, arrays_.flat.gradients, kept.begin, kept.end);
    empty_buckets_[i] = false;
  }
  for (nn::ParamId id = 0; marks_.any_empty() && id < arrays_.parameters.size(); ++id) {
    if (!marks_.take_empty(id)) continue;
    const FlatRange range = arrays_.layout.flat().range(id);
    arrays_.flat.gradients.for_parts(
        range.begin, range.end, Access::kWrite,
        [&](const Tensor& part, int64_t) { clear_memory(ctx, *arrays_.device, part); });
  }
}

void Gradients::expose_views(const OpContext& ctx) {
  before_change();
  DS_CHECK(arrays_.flat.gradients.in_memory(), Code::kUnsupported,
           "gradients that the caller writes as memory must lie there: keep those of parameters of "
           "the caller's own in memory");
  materialize(ctx);
  views_exposed_ = true;
}

void Gradients::check_materialized() const {
  DS_CHECK(!marks_.any_empty(), Code::kInternal,
           "gradients were read before they were materialized");
}

std::vector<std::span<std::byte>> Gradients::unused_memory() const {
  const optim::FlatTensor& gradients = arrays_.flat.gradients;
  std::vector<std::span<std::byte>> out;
  if (views_exposed_ || held_ || deferred() || arrays_.host_store != nullptr ||
      !gradients.in_memory() || arrays_.state_memory()->kind() != DeviceKind::kCpu) {
    return out;
  }
  const Tensor& memory = gradients.memory();
  const auto add = [&](int64_t begin, int64_t end) {
    const int64_t size = dtype_size(memory.dtype());
    auto* const first = static_cast<std::byte*>(memory.raw());
    if (begin < end)
      out.emplace_back(first + begin * size, static_cast<size_t>((end - begin) * size));
  };
  for (size_t i = 0; i < empty_buckets_.size(); ++i) {
    const Bucket& bucket = arrays_.layout.flat().buckets()[i];
    if (!empty_buckets_[i] || !bucket.trainable) continue;
    const FlatRange kept = kept_range(gradients, bucket);
    add(kept.begin, kept.end);
  }
  // What lies between them stays zero.
  for (nn::ParamId id = 0; id < arrays_.parameters.size(); ++id) {
    if (!marks_.empty(id)) continue;
    const FlatRange range = arrays_.layout.flat().range(id);
    add(range.begin, range.end);
  }
  return out;
}

const Tensor& Gradients::all() const {
  check_materialized();
  return arrays_.flat.gradients.memory();
}

Tensor Gradients::view(nn::ParamId id) const {
  check_materialized();
  return held_ ? held_.view(id) : arrays_.view(arrays_.flat.gradients.memory(), id);
}

// ---- reduced over ranks, or received by the host ----

void Gradients::reduce_over_ranks(const OpContext& ctx, const ShareOptions& options) {
  deferred_ = options.deferred_gradients;
  by_micro_batch_ = options.by_micro_batch;
  op_ = options.op;
  // One rank adds as if nothing was shared, unless its tiles have no other place, or its gradients
  // lie on the host.
  const bool in_place = !arrays_.layout.flat().any_tiled() && !arrays_.host_store;
  const bool alone = arrays_.all_ranks().size == 1;
  if (deferred_ || (alone && in_place)) return;
  // Those that one rank sends to its host travel as send_to_host has them.
  const DType comm_dtype = alone && arrays_.host_store ? DType::kFloat32 : options.comm_dtype;
  const GradientReducer::Options reduce{.whole = arrays_.layout.stage() == 0,
                                        .overlap = options.overlap,
                                        .scatter = options.reduce_scatter,
                                        .op = options.op,
                                        .comm_dtype = comm_dtype,
                                        .comm_dtype_for_all = options.comm_dtype_for_all,
                                        .eager = options.eager_gradients};
  std::vector<GradientReducer::Domain> domains;
  std::vector<std::shared_ptr<const NodeGroups>> nodes;
  for (size_t i = 0; i < arrays_.groups.size(); ++i) {
    const StateGroups& groups = arrays_.groups[i];
    domains.push_back({groups.shard, arrays_.layout.share_of_mean(static_cast<int>(i))});
    nodes.push_back(groups.nodes);
  }
  std::unique_ptr<QuantizedReduce> quantized;
  if (options.quantized_gradients &&
      std::ranges::any_of(nodes, [](const auto& one) { return one != nullptr; })) {
    quantized = std::make_unique<QuantizedReduce>(ctx, arrays_.layout.flat(), std::move(nodes),
                                                  options.feedback);
  }
  reducer_ = std::make_unique<GradientReducer>(
      ctx, arrays_.parameters, arrays_.layout.flat(), std::move(domains), reduce,
      [this, ctx](const Bucket& bucket, const Tensor& average) {
        return take_reduced(ctx, bucket, average);
      },
      std::move(quantized));
}

// One rank reduces with itself: a bucket is taken as soon as it is complete.
void Gradients::send_to_host(const OpContext& ctx) {
  const GradientReducer::Options reduce{.whole = true, .overlap = false};
  reducer_ = std::make_unique<GradientReducer>(
      ctx, arrays_.parameters, arrays_.layout.flat(),
      std::vector<GradientReducer::Domain>{{lone_group()}}, reduce,
      [this, ctx](const Bucket& bucket, const Tensor& gradients) {
        return take_reduced(ctx, bucket, gradients);
      });
}

void Gradients::stop_reducing() {
  reducer_.reset();
  empty_buckets_.clear();
}

std::shared_ptr<Event> Gradients::take_reduced(const OpContext& ctx, const Bucket& bucket,
                                               const Tensor& average) {
  const optim::FlatTensor& all = arrays_.flat.gradients;
  const FlatRange kept = kept_range(all, bucket);
  const size_t index = arrays_.index_of(bucket);
  const bool add = !empty_buckets_[index];
  empty_buckets_[index] = false;
  replicas_agree_ = false;
  if (arrays_.host_store) {
    HostStore::Arrived arrived;
    if (tells_complete()) {
      arrived = [this, &bucket] {
        if (tells_complete()) tell_complete(bucket);
      };
    }
    return arrays_.host_store->receive(
        average, {static_cast<const StoredArray&>(all), kept.begin, add}, std::move(arrived));
  }
  if (add) {
    ops::accumulate_array(ctx, average, all, kept.begin);
  } else {
    ops::write_array(ctx, average, all, kept.begin);
  }
  if (tells_complete()) tell_complete(bucket);
  return nullptr;
}

// One of a tile is a part of a parameter, and replicas are averaged when the step is made. Buckets
// that are computed with in fp32 may be masters, which backward still reads, but for those beside a
// GPU.
void Gradients::tell_complete(const Bucket& bucket) const {
  if (bucket.tile >= 0 || arrays_.groups[static_cast<size_t>(bucket.domain)].replicas) return;
  if (bucket.fp32 && !arrays_.host_store) return;
  for (size_t i = bucket.first; i < bucket.last; ++i) complete_(arrays_.layout.flat().order()[i]);
}

void Gradients::finish_backward() {
  if (reducer_ && !backward_held_) reducer_->finish();
  sums_.close_mapped();
}

void Gradients::reduce_open() {
  if (reducer_) reducer_->finish();
}

void Gradients::reduce_replicas() {
  if (replicas_agree_) return;
  const optim::FlatTensor& all = arrays_.flat.gradients;
  for (size_t i = 0; i < arrays_.groups.size(); ++i) {
    const RankGroup& replicas = arrays_.groups[i].replicas;
    if (!replicas) continue;
    const FlatRange range = range_of(arrays_.layout.flat(), all, static_cast<int>(i));
    all.for_parts(range.begin, range.end, Access::kReadWrite, [&](const Tensor& part, int64_t) {
      replicas->all_reduce(part, ReduceOp::kAverage, {.label = "gradients of replicas"})->wait();
    });
  }
  replicas_agree_ = true;
}

void Gradients::set_loss_scale(double scale) {
  if (reducer_ && reducer_->quantized()) reducer_->quantized()->set_loss_scale(scale);
}

void Gradients::drop_rounding_errors() {
  if (reducer_ && reducer_->quantized()) reducer_->quantized()->drop_errors();
}

// ---- the caller's ----

void Gradients::add(const OpContext& ctx, nn::ParamId id, const Tensor& value) {
  nn::GradientTarget target = gradient_target(id);
  if (target.add) {
    ops::accumulate(ctx, value, 1.0f, target.sum);
  } else {
    ops::cast(ctx, value, target.sum);
  }
  gradient_complete(id);
}

void Gradients::hold_whole() {
  before_change();
  if (arrays_.shared() && !held_) held_.allocate(accumulation_type());
}

void Gradients::reduce_held(const OpContext& ctx) {
  if (!held_) return;
  materialize(ctx);
  held_.reduce_into(ctx, op_, arrays_.flat.gradients);
  backward_held_ = false;
}

void Gradients::reduce_deferred() {
  if (!deferred() || held_) return;
  const FlatLayout& layout = arrays_.layout.flat();
  const optim::FlatTensor& all = arrays_.flat.gradients;
  std::vector<WorkPtr> works;
  for (const Bucket& bucket : layout.buckets()) {
    if (!bucket.trainable) continue;
    const Tensor whole = all.memory().slice(0, bucket.range.begin, bucket.range.end);
    const CollectiveOptions options{.label = arrays_.parameters[layout.order()[bucket.first]].name};
    const RankGroup& ranks = arrays_.ranks(bucket);
    works.push_back(arrays_.layout.stage() == 0
                        ? ranks->all_reduce(whole, op_, options)
                        : ranks->reduce_scatter(arrays_.owned(all, bucket), whole, op_, options));
  }
  for (const WorkPtr& work : works) work->wait();
  for (const Bucket& bucket : layout.buckets()) {
    const float share = arrays_.share_of_mean(bucket);
    if (!bucket.trainable || share == 1 || op_ != ReduceOp::kAverage) continue;
    const FlatRange own =
        arrays_.layout.stage() == 0 ? bucket.range : arrays_.owned_range(all, bucket);
    Tensor mean = all.memory().slice(0, own.begin, own.end);
    ops::scale(ctx_, mean, share, mean);
  }
}

}  // namespace ds::zero
