#include "zero/weights.h"

#include "base/text.h"
#include "nn/model_weights.h"
#include "ops/elementwise.h"
#include "ops/split_master.h"
#include "ops/stored_array.h"
#include "tensor/transfer.h"

namespace ds::zero {
namespace {

// As the weights of masters are rounded: split ones half up, which the halves beside them go with.
void round_to_weights(const OpContext& ctx, const optim::FlatTensors& flat, const Tensor& masters,
                      Tensor& weights) {
  if (!flat.low_halves) return ops::cast(ctx, masters, weights);
  Tensor low = ctx.workspace(DType::kUInt16, masters.shape());
  ops::split_masters(ctx, masters, weights, low);
}

}  // namespace

Weights::Weights(StateArrays& arrays)
    : arrays_(arrays), fp32_(arrays), borrowed_(arrays.parameters) {}

// ---- as nn reads them ----

bool Weights::stays_in_place() const { return !arrays_.shared() && !arrays_.host_store && !fp8_; }

void Weights::check_not_lost() const {
  if (lost_) nn::fail_lost();
}

Tensor Weights::acquire(nn::ParamId id) { return acquire_all({&id, 1}).front(); }

void Weights::release(nn::ParamId id) noexcept {
  --open_guards_;
  if (gatherer_ && !tiling(id)) gatherer_->release(arrays_.layout.flat().bucket_of(id));
}

void Weights::send_stale() {
  if (arrays_.host_store && arrays_.host_store->stale()) arrays_.send_weights();
}

std::vector<Tensor> Weights::acquire_all(std::span<const nn::ParamId> ids) {
  check_not_lost();
  for (const nn::ParamId id : ids) {
    DS_CHECK(arrays_.holds(id), Code::kUnsupported, "other ranks hold ", parameters()[id].name,
             " (expert_parallel): only training and evaluation by the engine compute with it; for "
             "everything else copy the model on every rank (ds_model_copy), or save a checkpoint, "
             "and use that");
  }
  arrays_.reload_masters();
  const FlatLayout& layout = arrays_.layout.flat();
  send_stale();
  std::vector<Tensor> out;
  size_t from = 0, to = 0;  // held and not waited for yet
  try {
    for (; gatherer_ && to < ids.size(); ++to) {
      if (!tiling(ids[to])) gatherer_->hold(layout.bucket_of(ids[to]));
    }
    for (const nn::ParamId id : ids) {
      if (!gatherer_) {
        out.push_back(view(id));
        continue;
      }
      if (tiling(id)) {
        out.push_back(whole_of_tiles(id));
        ++from;
        continue;
      }
      ++from;  // a wait that fails ends the hold
      const size_t index = layout.bucket_of(id);
      const int64_t begin = layout.buckets()[index].range.begin;
      const FlatRange range = layout.range(id);
      out.push_back(gatherer_->wait(index)
                        .slice(0, range.begin - begin, range.end - begin)
                        .view(parameters()[id].shape));
    }
  } catch (...) {
    for (size_t i = 0; i < to; ++i) {
      if (tiling(ids[i])) continue;
      if (i < out.size() || i >= from) gatherer_->release(layout.bucket_of(ids[i]));
    }
    throw;
  }
  open_guards_ += static_cast<int>(ids.size());
  return out;
}

Tensor Weights::acquire_tile(nn::ParamId id, int64_t tile) {
  check_not_lost();
  send_stale();
  const Tensor& rows = gatherer_->acquire(tile_bucket(id, tile));
  ++open_guards_;
  const int64_t columns = parameters()[id].shape[1];
  return rows.view({rows.elements() / columns, columns});
}

void Weights::release_tile(nn::ParamId id, int64_t tile) noexcept {
  --open_guards_;
  gatherer_->release(tile_bucket(id, tile));
}

// For readers that need all rows, in their order.
Tensor Weights::whole_of_tiles(nn::ParamId id) {
  const nn::Tiling& tiles = *tiling(id);
  const Shape& shape = parameters()[id].shape;
  const std::shared_ptr<Device>& device = arrays_.device;
  const Tensor whole = Tensor::empty(device, compute_type_, shape, MemoryTag::kCommunication);
  for (int64_t tile = 0; tile < tiles.count; ++tile) {
    const Tensor rows = acquire_tile(id, tile);
    for (int64_t block = 0; block < tiles.blocks; ++block) {
      const nn::Tiling::Rows to = tiles.rows_of(shape[0], block, tile);
      if (to.count == 0) continue;
      const int64_t from = block * tiles.rows(tile);
      const Tensor part = rows.slice(0, from, from + to.count);
      device->copy(whole.slice(0, to.begin, to.begin + to.count).raw(), part.raw(), part.bytes(),
                   device->default_stream());
    }
    release_tile(id, tile);
  }
  return whole;
}

void Weights::begin_pass() {
  if (gatherer_) gatherer_->begin_pass();
}

void Weights::end_pass() {
  if (gatherer_) gatherer_->end_pass();
}

void Weights::drop_pass() noexcept {
  if (gatherer_) gatherer_->drop_pass();
}

// ---- where they are ----

Tensor Weights::view(nn::ParamId id) const {
  DS_CHECK(arrays_.holds(id), Code::kUnsupported, "other ranks hold ", parameters()[id].name,
           " (expert_parallel): there is no view of it here; read its values instead");
  const FlatLayout& layout = arrays_.layout.flat();
  const Bucket& bucket = arrays_.bucket(id);
  if (layout.tiling(id) != nullptr || !arrays_.in_fp32(bucket)) {
    return arrays_.view(arrays_.weights().memory(), id);
  }
  const FlatRange range = layout.range(id);
  const int64_t begin = range.begin - bucket.range.begin;
  return fp32_.whole(bucket).slice(0, begin, begin + range.elements()).view(parameters()[id].shape);
}

Tensor Weights::current_value(nn::ParamId id) const {
  return arrays_.whole_masters() ? arrays_.view(arrays_.flat.masters.memory(), id) : view(id);
}

bool Weights::computes_with_master(nn::ParamId id) const {
  const optim::FlatTensors& flat = arrays_.flat;
  return flat.masters && !arrays_.host_store &&
         (!flat.model || (arrays_.in_fp32(arrays_.bucket(id)) && !fp32_.copied()));
}

Tensor Weights::whole_bucket(const Bucket& bucket) const {
  if (arrays_.in_fp32(bucket)) return fp32_.whole(bucket);
  return arrays_.weights().memory().slice(0, bucket.range.begin, bucket.range.end);
}

WeightRoute::Piece Weights::piece(const Bucket& bucket) const {
  if (arrays_.in_fp32(bucket)) return {fp32_.piece(bucket), {0, bucket.piece}};
  return {static_cast<const StoredArray&>(arrays_.weights()),
          arrays_.owned_range(arrays_.weights(), bucket)};
}

void Weights::set_compute_type(DType type) {
  compute_type_ = type;
  fp32_.drop();
  fp32_.allocate();
}

void Weights::gather_from(const OpContext& ctx, const ShareOptions& options) {
  std::vector<WeightRoute::Piece> pieces;
  std::vector<std::string> names;
  const FlatLayout& layout = arrays_.layout.flat();
  for (const Bucket& bucket : layout.buckets()) {
    pieces.push_back(piece(bucket));
    names.push_back(str_cat("weights of ", parameters()[layout.order()[bucket.first]].name));
    if (bucket.tile >= 0) names.back() += str_cat(", tile ", bucket.tile);
  }
  WeightRoute::Bring bring;
  if (options.offload && options.offload->weights) {
    bring = [this](const Tensor& from, const Tensor& to) {
      return arrays_.host_store->bring(from, to);
    };
  }
  gatherer_ = std::make_unique<WeightGatherer>(
      layout,
      std::make_unique<WeightRoute>(ctx, layout, arrays_.groups, options.weights, std::move(pieces),
                                    std::move(bring)),
      options.gather);
  gatherer_->name_buckets(std::move(names));
}

// ---- after masters were written ----

// What this rank owns of a bucket or a parameter, to the copy in the compute type.
template <class Part>
void Weights::copy_masters(const OpContext& ctx, const Part& part) {
  const optim::FlatTensors& flat = arrays_.flat;
  const FlatRange from = arrays_.owned_range(flat.masters, part);
  ops::copy_array(ctx, flat.masters, from.begin, flat.model,
                  arrays_.owned_range(flat.model, part).begin, from.elements());
}

void Weights::follow_masters(const OpContext& ctx) {
  const optim::FlatTensors& flat = arrays_.flat;
  if (arrays_.host_store) {
    arrays_.send_weights();
  } else if (flat.model && flat.masters) {
    if (flat.model.compact == flat.masters.compact) {
      ops::copy_array(ctx, flat.masters, 0, flat.model, 0, flat.model.elements());
    } else {
      for (const Bucket& bucket : arrays_.layout.flat().buckets()) copy_masters(ctx, bucket);
    }
  }
  fp32_.write_all(ctx, true);
  if (arrays_.shared()) gather(true);
  changed(ctx);
}

void Weights::follow_update(const OpContext& ctx) {
  if (arrays_.host_store) {
    arrays_.host_store->close_update();
    if (arrays_.shared()) send_stale();  // other ranks gather it from here
  }
  fp32_.write_all(ctx, false);
  if (arrays_.shared()) gather(false);
  changed(ctx);
}

void Weights::follow_master(const OpContext& ctx, nn::ParamId id, const Tensor& value) {
  if (!arrays_.holds(id)) return;
  if (fp8_) fp8_->weights_changed();
  if (arrays_.masters_left_on_host()) return;
  if (arrays_.host_store) return follow_host_master(ctx, id, value);
  const bool in_fp32 = arrays_.in_fp32(arrays_.bucket(id));
  // What every rank has whole, it has from the value; pieces of weights follow from the masters.
  if (!arrays_.weights().compact) {
    Tensor copy = arrays_.view(arrays_.weights().memory(), id);
    round_to_weights(ctx, arrays_.flat, value, copy);
    if (in_fp32 && fp32_.copied()) {
      Tensor weight = view(id);
      ops::cast(ctx, value, weight);
    }
  } else {
    const OwnedPart part = arrays_.layout.flat().part(id);
    // Split masters were written together with the weights.
    if (!arrays_.flat.low_halves) {
      ops::write_array(ctx,
                       value.view({value.elements()}).slice(0, part.first, part.first + part.count),
                       arrays_.weights(), arrays_.owned_range(arrays_.weights(), id).begin);
    }
    if (in_fp32) fp32_.write(ctx, arrays_.bucket(id));
    gatherer_->pieces_changed(true);
  }
  borrowed_.write(ctx, id, value);
}

// This rank sends what it owns of the parameter; where its GPU has it whole, all that others own
// comes from the value too.
void Weights::follow_host_master(const OpContext& ctx, nn::ParamId id, const Tensor& value) {
  const optim::FlatTensor& weights = arrays_.weights();
  if (weights.compact || arrays_.layout.flat().world(arrays_.bucket(id)) == 1) {
    arrays_.send_weights(id);
    if (gatherer_) gatherer_->pieces_changed(true);
    return;
  }
  const OpContext host = arrays_.state_context(ctx);
  Tensor rounded = host.workspace(compute_type_, value.shape());
  round_to_weights(host, arrays_.flat, to_host(value, host.device), rounded);
  copy_tensor(rounded, view(id));
}

void Weights::follow_owned_master(const OpContext& ctx, nn::ParamId id) {
  if (!arrays_.holds(id)) return;
  if (fp8_) fp8_->weights_changed();
  const optim::FlatTensors& flat = arrays_.flat;
  if (arrays_.host_store) {
    arrays_.send_weights(id);
  } else if (flat.model && flat.masters) {
    copy_masters(ctx, id);
  }
  const Bucket& bucket = arrays_.bucket(id);
  if (arrays_.in_fp32(bucket)) fp32_.write(ctx, bucket);
  if (gatherer_) {
    gatherer_->pieces_changed(true);
  } else if (arrays_.shared() && arrays_.layout.stage() > 0) {
    arrays_.ranks(bucket)
        ->all_gather(whole_bucket(bucket), piece(bucket).map().data(),
                     {.label = parameters()[id].name})
        ->wait();
  }
  if (borrowed_.has(id)) borrowed_.write(ctx, id, current_value(id));
}

// After an update every rank has new values of its pieces.
void Weights::gather(bool frozen_too) {
  if (gatherer_) return gatherer_->pieces_changed(frozen_too);
  if (arrays_.layout.stage() == 0) return;
  std::vector<WorkPtr> works;
  for (const Bucket& bucket : arrays_.layout.flat().buckets()) {
    if (!bucket.trainable && !frozen_too) continue;
    works.push_back(arrays_.ranks(bucket)->all_gather(
        whole_bucket(bucket), piece(bucket).map().data(), {.label = "weights"}));
  }
  for (const WorkPtr& work : works) work->wait();
}

// Borrowed memory and fp8 codes follow.
void Weights::changed(const OpContext& ctx) {
  if (fp8_) fp8_->weights_changed();
  borrowed_.write_all(ctx, [this](nn::ParamId id) { return current_value(id); });
}

}  // namespace ds::zero
