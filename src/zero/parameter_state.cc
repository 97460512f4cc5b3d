#include "zero/parameter_state.h"

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/split_master.h"
#include "tensor/transfer.h"

namespace ds::zero {

ParameterState::ParameterState(const nn::ParameterSet& parameters, std::shared_ptr<Device> device,
                               std::shared_ptr<const WeightLoader> loader)
    : parameters_(parameters),
      layout_(parameters),
      device_(std::move(device)),
      marks_(parameters),
      borrowed_(parameters),
      loader_(std::move(loader)) {
  if (loader_) return;
  flat_.masters =
      Tensor::zeros(device_, DType::kFloat32, {layout_.elements()}, MemoryTag::kParameters);
}

void ParameterState::make_whole(const OpContext& ctx) {
  if (!loader_) return;
  const Tensor all =
      Tensor::zeros(device_, DType::kFloat32, {layout_.elements()}, MemoryTag::kParameters);
  for (const nn::ParamId id : layout_.order()) {
    const FlatRange range = layout_.range(id);
    Tensor out = all.slice(0, range.begin, range.end);
    if (range.elements() > 0) fill_weights(*loader_, ctx, id, parameters_[id], 0, out);
  }
  flat_.masters = all;
  loader_.reset();
}

// What travels between this and a GPU uses memory of both.
ParameterState::~ParameterState() {
  if (host_store_) host_store_->drop();
}

Tensor ParameterState::view(const Tensor& flat, nn::ParamId id) const {
  const FlatRange range = layout_.range(id);
  return flat.slice(0, range.begin, range.end).view(parameters_[id].shape);
}

void ParameterState::check_not_lost() const {
  DS_CHECK(!lost_, Code::kState,
           "the weights were spread over ranks by an engine that is gone; open the model again, or "
           "make it anew and load a checkpoint");
}

Tensor ParameterState::acquire(nn::ParamId id) { return acquire_all({&id, 1}).front(); }

void ParameterState::release(nn::ParamId id) noexcept {
  --open_guards_;
  if (gatherer_ && !tiling(id)) gatherer_->release(layout_.bucket_of(id));
}

std::vector<Tensor> ParameterState::acquire_all(std::span<const nn::ParamId> ids) {
  check_not_lost();
  reload_masters();
  if (host_store_ && host_store_->stale()) host_store_->send_stale(flat_);
  std::vector<Tensor> out;
  size_t from = 0, to = 0;  // held and not waited for yet
  try {
    for (; gatherer_ && to < ids.size(); ++to) {
      if (!tiling(ids[to])) gatherer_->hold(layout_.bucket_of(ids[to]));
    }
    for (const nn::ParamId id : ids) {
      if (!gatherer_) {
        out.push_back(model_view(id));
        continue;
      }
      if (tiling(id)) {
        out.push_back(whole_of_tiles(id));
        ++from;
        continue;
      }
      ++from;  // a wait that fails ends the hold
      const size_t index = layout_.bucket_of(id);
      const int64_t begin = layout_.buckets()[index].range.begin;
      const FlatRange range = layout_.range(id);
      out.push_back(gatherer_->wait(index)
                        .slice(0, range.begin - begin, range.end - begin)
                        .view(parameters_[id].shape));
    }
  } catch (...) {
    for (size_t i = 0; i < to; ++i) {
      if (tiling(ids[i])) continue;
      if (i < out.size() || i >= from) gatherer_->release(layout_.bucket_of(ids[i]));
    }
    throw;
  }
  open_guards_ += static_cast<int>(ids.size());
  return out;
}

void ParameterState::zero_gradient(const OpContext& ctx, nn::ParamId id) {
  Tensor target = view(flat_.gradients.data, id);
  if (ctx.pool != nullptr) {
    ops::fill(ctx, 0.0f, target);
  } else {
    device_->clear(target.raw(), target.bytes(), device_->default_stream());
  }
}

nn::GradientTarget ParameterState::gradient_target(nn::ParamId id) {
  if (!parameters_[id].trainable) return {};
  marks_.set_given(id);
  DS_CHECK(!tiling(id), Code::kUnsupported, "the gradient of ", parameters_[id].name,
           " is nowhere whole while it is reduced in tiles; without stage3_tile_size it is");
  if (reducer_ && !backward_held_) return reducer_->target(id);
  DS_CHECK(flat_.gradients, Code::kInternal, "backward without gradient buffers");
  if (accumulation_type_ == DType::kFloat32) {
    if (backward_held_) return {view(micro_, id), true};
    return {view(flat_.gradients.data, id), !marks_.take_empty(id)};
  }
  bool add = true;
  const Tensor sum = open_gradient(id, add);
  return {sum, add};
}

// The fp32 sum of this micro batch, where gradients gather in another type.
Tensor ParameterState::open_gradient(nn::ParamId id, bool& add) {
  Tensor& sum = open_gradients_[static_cast<size_t>(id)];
  add = static_cast<bool>(sum);
  if (!add) {
    sum = Tensor::empty(device_, DType::kFloat32, parameters_[id].shape, MemoryTag::kGradients);
  }
  return sum;
}

Tensor ParameterState::gradient(nn::ParamId id) {
  nn::GradientTarget target = gradient_target(id);
  if (target.add || !target.sum) return target.sum;
  if (!reducer_ && accumulation_type_ == DType::kFloat32) {
    zero_gradient(gradient_ctx_, id);
  } else {
    ops::fill(gradient_ctx_, 0.0f, target.sum);
  }
  return target.sum;
}

void ParameterState::gradient_complete(nn::ParamId id) {
  if (reducer_ && !backward_held_) {
    if (!parameters_[id].trainable) return;
    const nn::Tiling* const tiles = tiling(id);
    for (int64_t i = 0; i < (tiles ? tiles->count : 1); ++i) reducer_->complete(id, i);
    return;
  }
  if (accumulation_type_ == DType::kFloat32 || !parameters_[id].trainable) return;
  Tensor& sum = open_gradients_[static_cast<size_t>(id)];
  if (!sum) return;
  Tensor target = view(backward_held_ ? micro_ : flat_.gradients.data, id);
  if (!backward_held_ && marks_.take_empty(id)) {
    ops::cast(gradient_ctx_, sum, target);
  } else {
    ops::accumulate(gradient_ctx_, sum, 1.0f, target);
  }
  sum = Tensor();
}

const nn::Tiling* ParameterState::tiling(nn::ParamId id) const {
  return gatherer_ ? layout_.tiling(id) : nullptr;
}

Tensor ParameterState::acquire_tile(nn::ParamId id, int64_t tile) {
  check_not_lost();
  const Tensor& rows = gatherer_->acquire(tile_bucket(id, tile));
  ++open_guards_;
  const int64_t columns = parameters_[id].shape[1];
  return rows.view({rows.elements() / columns, columns});
}

void ParameterState::release_tile(nn::ParamId id, int64_t tile) noexcept {
  --open_guards_;
  gatherer_->release(tile_bucket(id, tile));
}

// For readers that need all rows, in their order.
Tensor ParameterState::whole_of_tiles(nn::ParamId id) {
  const nn::Tiling& tiles = *layout_.tiling(id);
  const Shape& shape = parameters_[id].shape;
  const Tensor whole = Tensor::empty(device_, compute_type_, shape, MemoryTag::kCommunication);
  for (int64_t tile = 0; tile < tiles.count; ++tile) {
    const Tensor rows = acquire_tile(id, tile);
    for (int64_t block = 0; block < tiles.blocks; ++block) {
      const nn::Tiling::Rows to = tiles.rows_of(shape[0], block, tile);
      if (to.count == 0) continue;
      const int64_t from = block * tiles.rows(tile);
      const Tensor part = rows.slice(0, from, from + to.count);
      device_->copy(whole.slice(0, to.begin, to.begin + to.count).raw(), part.raw(), part.bytes(),
                    device_->default_stream());
    }
    release_tile(id, tile);
  }
  return whole;
}

nn::GradientTarget ParameterState::tile_gradient(nn::ParamId id, int64_t tile) {
  if (!parameters_[id].trainable) return {};
  marks_.set_given(id);
  return reducer_->target(id, tile);
}

void ParameterState::tile_gradient_complete(nn::ParamId id, int64_t tile) {
  if (parameters_[id].trainable) reducer_->complete(id, tile);
}

void ParameterState::set_compute_type(const OpContext& ctx, DType type, Masters masters,
                                      const std::vector<bool>& fp32) {
  DS_CHECK(type == DType::kFloat32 || type == DType::kBFloat16 || type == DType::kFloat16,
           Code::kUnsupported, "models compute in float32, bfloat16 or float16, not ",
           dtype_name(type));
  DS_CHECK(masters == Masters::kFp32 || type == DType::kBFloat16 ||
               (masters == Masters::kWeights && type == DType::kFloat16),
           Code::kInternal, "no such masters of ", dtype_name(type), " weights");
  DS_CHECK(open_guards_ == 0, Code::kInternal, "compute type changed while parameters are in use");
  DS_CHECK(!comm_ && !host_store_, Code::kInternal, "compute type changed while it is shared");
  reload_masters();
  const Shape all{layout_.elements()};
  if (flat_.low_halves) {
    Tensor joined = Tensor::empty(device_, DType::kFloat32, all, MemoryTag::kParameters);
    ops::join_masters(ctx, flat_.model.data, flat_.low_halves.data, joined);
    flat_.masters = std::move(joined);
    flat_.low_halves = {};
  } else if (flat_.masters && !masters_in_place()) {
    Tensor widened = Tensor::empty(device_, DType::kFloat32, all, MemoryTag::kParameters);
    ops::cast(ctx, flat_.masters.data, widened);
    flat_.masters = std::move(widened);
  }
  compute_type_ = type;
  fp32_weights_ = Tensor();
  Sharing sharing;  // one rank's, where buckets do not move parameters
  sharing.fp32 = fp32;
  layout_ = FlatLayout(parameters_, sharing);
  flat_.model = type == DType::kFloat32 ? Tensor()
                                        : Tensor::empty(device_, type, all, MemoryTag::kParameters);
  if (masters == Masters::kWeights) {
    ops::cast(ctx, flat_.masters.data, flat_.model.data);
    flat_.masters = std::move(flat_.model);
    flat_.model = {};
  }
  if (masters == Masters::kSplit) {
    flat_.low_halves = Tensor::empty(device_, DType::kUInt16, all, MemoryTag::kParameters);
    ops::split_masters(ctx, flat_.masters.data, flat_.model.data, flat_.low_halves.data);
    flat_.masters = {};
  }
  allocate_fp32_weights(false);
  masters_changed(ctx);
}

void ParameterState::masters_changed(const OpContext& ctx) {
  if (host_store_) {
    host_store_->send(flat_, {0, layout_.elements()});
    return weights_changed(ctx);
  }
  if (flat_.model && flat_.masters) {
    if (flat_.model.compact == flat_.masters.compact) {
      ops::cast(ctx, flat_.masters.data, flat_.model.data);
    } else {
      for (const Bucket& bucket : layout_.buckets()) {
        Tensor copy = owned(flat_.model, bucket);
        ops::cast(ctx, owned(flat_.masters, bucket), copy);
      }
    }
  }
  write_fp32_weights(ctx, true);
  if (comm_) gather_weights(true);
  weights_changed(ctx);
}

void ParameterState::weights_updated(const OpContext& ctx) {
  if (host_store_) {
    host_store_->close_update();
    return weights_changed(ctx);
  }
  write_fp32_weights(ctx, false);
  if (comm_) gather_weights(false);
  weights_changed(ctx);
}

void ParameterState::weights_changed(const OpContext& ctx) {
  if (fp8_) fp8_->weights_changed();
  borrowed_.write_all(ctx, [this](nn::ParamId id) { return current_value(id); });
}

void ParameterState::allocate_gradients() { allocate_gradients({}, DType::kFloat32); }

void ParameterState::allocate_gradients(const OpContext& ctx, DType type) {
  const bool at_once = comm_ && deferred_gradients_ && !by_micro_batch_;
  const bool compact = comm_ && stage_ > 0 && !at_once;
  const int64_t elements =
      compact ? layout_.owned_trainable_elements() : layout_.trainable_elements();
  // The caller's gradients travel from where they lie.
  Tensor all = at_once ? comm_->shared_tensor(device_, type, {elements}, MemoryTag::kGradients,
                                              {.label = "gradients"})
                       : Tensor::zeros(state_memory(), type, {elements}, MemoryTag::kGradients);
  flat_.gradients = {std::move(all), compact};
  accumulation_type_ = type;
  if (deferred_gradients_ && by_micro_batch_) hold_external_gradients();
  gradient_ctx_ = ctx;
  open_gradients_.assign(type == DType::kFloat32 ? 0 : static_cast<size_t>(parameters_.size()),
                         Tensor());
  marks_.set_none_empty();
  if (reducer_) empty_buckets_.assign(layout_.buckets().size(), true);
  clear_at_once_ = false;
}

void ParameterState::free_gradients() {
  if (host_store_) host_store_->drop();
  flat_.gradients = {};
  micro_ = Tensor();
  open_gradients_.clear();
  gradient_ctx_ = {};
  marks_.set_none_empty();
}

void ParameterState::clear_gradients(const OpContext& ctx) {
  for (Tensor& open : open_gradients_) open = Tensor();
  marks_.clear_given();
  if (micro_) ops::fill(ctx, 0.0f, micro_);
  backward_held_ = false;
  if (reducer_) {
    reducer_->drop();
    replicas_agree_ = true;
  }
  if (host_store_ && host_store_->receiving()) host_store_->drop();
  if (clear_at_once_) return ops::fill(state_context(ctx), 0.0f, flat_.gradients.data);
  if (reducer_) {
    empty_buckets_.assign(layout_.buckets().size(), true);
    return;
  }
  marks_.set_all_empty();
}

void ParameterState::restore_marks(const GradientMarks::Snapshot& left) {
  marks_.restore(left);
  for (Tensor& open : open_gradients_) open = Tensor();
}

void ParameterState::materialize_gradients(const OpContext& ctx) {
  if (host_store_) host_store_->finish_arrivals();
  for (size_t i = 0; i < empty_buckets_.size(); ++i) {
    if (!empty_buckets_[i] || !layout_.buckets()[i].trainable) continue;
    Tensor target = kept_gradients(layout_.buckets()[i]);
    ops::fill(state_context(ctx), 0.0f, target);
    empty_buckets_[i] = false;
  }
  for (nn::ParamId id = 0; marks_.any_empty() && id < parameters_.size(); ++id) {
    if (marks_.take_empty(id)) zero_gradient(ctx, id);
  }
}

void ParameterState::clear_gradients_at_once(const OpContext& ctx) {
  materialize_gradients(ctx);
  clear_at_once_ = true;
}

void ParameterState::replace_gradients(Tensor gradients) {
  flat_.gradients.data = std::move(gradients);
  marks_.set_none_empty();
}

const Tensor& ParameterState::gradients() const {
  DS_CHECK(!marks_.any_empty(), Code::kInternal,
           "gradients were read before they were materialized");
  return flat_.gradients.data;
}

Tensor ParameterState::gradient_view(nn::ParamId id) const {
  DS_CHECK(!marks_.any_empty(), Code::kInternal,
           "a gradient was read before they were materialized");
  return view(micro_ ? micro_ : flat_.gradients.data, id);
}

Tensor ParameterState::read_master(const OpContext& ctx, nn::ParamId id) const {
  check_not_lost();
  if (loader_) {
    const Shape& shape = parameters_[id].shape;
    const Tensor value = Tensor::empty(device_, DType::kFloat32, shape, MemoryTag::kOther);
    Tensor out = value.view({shape.elements()});
    if (out.elements() > 0) fill_weights(*loader_, ctx, id, parameters_[id], 0, out);
    return value;
  }
  if (whole_masters() && masters_in_place()) return master(id);
  if (layout_.world() > 1 && !whole_masters())
    return gather_parts(ctx, id, read_owned_master(ctx, id));
  if (!whole_masters()) return read_owned_master(ctx, id).view(parameters_[id].shape);
  Tensor widened = ctx.workspace(DType::kFloat32, parameters_[id].shape);
  ops::cast(ctx, master(id), widened);
  return widened;
}

Tensor ParameterState::read_owned_master(const OpContext& ctx, nn::ParamId id) const {
  if (masters_in_place()) return owned(flat_.masters, id);
  const OpContext state_ctx = state_context(ctx);
  if (flat_.masters) {
    Tensor widened = state_ctx.workspace(DType::kFloat32, {layout_.part(id).count});
    ops::cast(state_ctx, owned(flat_.masters, id), widened);
    return widened;
  }
  Tensor joined = state_ctx.workspace(DType::kFloat32, {layout_.part(id).count});
  ops::join_masters(state_ctx, owned(flat_.model, id), owned(flat_.low_halves, id), joined);
  return joined;
}

void ParameterState::write_owned_master(const OpContext& ctx, nn::ParamId id, int64_t at,
                                        const Tensor& value) {
  const int64_t end = at + value.elements();
  const OpContext state_ctx = state_context(ctx);
  hold_masters();
  if (flat_.masters) {
    Tensor target = owned(flat_.masters, id).slice(0, at, end);
    ops::cast(state_ctx, value, target);
  } else {
    Tensor weights = owned(flat_.model, id).slice(0, at, end);
    Tensor low = owned(flat_.low_halves, id).slice(0, at, end);
    ops::split_masters(state_ctx, value, weights, low);
  }
}

void ParameterState::write_master(const OpContext& ctx, nn::ParamId id, const Tensor& value) {
  if (fp8_) fp8_->weights_changed();
  const OwnedPart part = layout_.part(id);
  const OpContext state_ctx = state_context(ctx);
  const Tensor own = to_device(value, state_ctx.device)
                         .view({value.elements()})
                         .slice(0, part.first, part.first + part.count);
  hold_masters();
  if (flat_.masters) {
    Tensor target = owned(flat_.masters, id);
    ops::cast(state_ctx, own, target);
  } else {
    Tensor weights = owned(flat_.model, id), low = owned(flat_.low_halves, id);
    ops::split_masters(state_ctx, own, weights, low);
  }
  if (host_store_) return host_store_->send(flat_, layout_.range(id));
  if (masters_on_host()) return;
  // What every rank has whole, it has from the value; pieces of weights follow from the masters.
  if (!weights().compact) {
    Tensor copy = view(weights().data, id);
    ops::cast(ctx, value, copy);
    if (in_fp32(bucket(id)) && fp32_weights_) {
      Tensor weight = model_view(id);
      ops::cast(ctx, value, weight);
    }
  } else {
    Tensor piece = owned(weights(), id);
    ops::cast(ctx, own, piece);
    if (in_fp32(bucket(id))) write_fp32_weights(ctx, bucket(id));
    gatherer_->pieces_changed(true);
  }
  borrowed_.write(ctx, id, value);
}

void ParameterState::owned_master_written(const OpContext& ctx, nn::ParamId id) {
  if (fp8_) fp8_->weights_changed();
  if (host_store_) return host_store_->send(flat_, layout_.range(id));
  if (flat_.model && flat_.masters) {
    Tensor piece = owned(flat_.model, id);
    ops::cast(ctx, owned(flat_.masters, id), piece);
  }
  const Bucket& shared = bucket(id);
  if (in_fp32(shared)) write_fp32_weights(ctx, shared);
  if (gatherer_) {
    gatherer_->pieces_changed(true);
  } else if (comm_ && stage_ > 0) {
    comm_->all_gather(whole_weights(shared), weight_piece(shared), {.label = parameters_[id].name})
        ->wait();
  }
  if (borrowed_.has(id)) borrowed_.write(ctx, id, current_value(id));
}

void ParameterState::replace_masters(const OpContext& ctx, Tensor masters) {
  if (flat_.low_halves) {
    ops::split_masters(ctx, masters, flat_.model.data, flat_.low_halves.data);
  } else {
    flat_.masters.data = std::move(masters);
  }
  masters_changed(ctx);
}

}  // namespace ds::zero
