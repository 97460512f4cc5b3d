#include "zero/parameter_state.h"

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/split_master.h"

namespace ds::zero {

ParameterState::ParameterState(const nn::ParameterSet& parameters, std::shared_ptr<Device> device)
    : parameters_(parameters), layout_(parameters), device_(std::move(device)) {
  flat_.masters =
      Tensor::zeros(device_, DType::kFloat32, {layout_.elements()}, MemoryTag::kParameters);
}

Tensor ParameterState::view(const Tensor& flat, nn::ParamId id) const {
  const FlatRange range = layout_.range(id);
  return flat.slice(0, range.begin, range.end).view(parameters_[id].shape);
}

Tensor ParameterState::acquire(nn::ParamId id) {
  ++open_guards_;
  return model_view(id);
}

void ParameterState::release(nn::ParamId) noexcept { --open_guards_; }

Tensor ParameterState::gradient(nn::ParamId id) {
  if (!parameters_[id].trainable) return {};
  DS_CHECK(flat_.gradients, Code::kInternal, "backward without gradient buffers");
  if (accumulation_type_ == DType::kFloat32) return gradient_view(id);
  Tensor& sum = open_gradients_[static_cast<size_t>(id)];
  if (!sum) {
    sum = Tensor::empty(device_, DType::kFloat32, parameters_[id].shape, MemoryTag::kGradients);
    ops::fill(gradient_ctx_, 0.0f, sum);
  }
  return sum;
}

// One process owns every gradient: there is nothing to reduce.
void ParameterState::gradient_complete(nn::ParamId id) {
  if (accumulation_type_ == DType::kFloat32 || !parameters_[id].trainable) return;
  Tensor& sum = open_gradients_[static_cast<size_t>(id)];
  if (!sum) return;
  Tensor target = gradient_view(id);
  ops::accumulate(gradient_ctx_, sum, 1.0f, target);
  sum = Tensor();
}

void ParameterState::set_compute_type(const OpContext& ctx, DType type, bool split) {
  DS_CHECK(type == DType::kFloat32 || type == DType::kBFloat16 || type == DType::kFloat16,
           Code::kUnsupported, "models compute in float32, bfloat16 or float16, not ",
           dtype_name(type));
  DS_CHECK(!split || type == DType::kBFloat16, Code::kInternal, "only bf16 weights split masters");
  DS_CHECK(open_guards_ == 0, Code::kInternal, "compute type changed while parameters are in use");
  const Shape all{layout_.elements()};
  if (flat_.low_halves) {
    Tensor joined = Tensor::empty(device_, DType::kFloat32, all, MemoryTag::kParameters);
    ops::join_masters(ctx, flat_.model, flat_.low_halves, joined);
    flat_.masters = std::move(joined);
    flat_.low_halves = Tensor();
  }
  compute_type_ = type;
  flat_.model = type == DType::kFloat32 ? Tensor()
                                        : Tensor::empty(device_, type, all, MemoryTag::kParameters);
  if (split) {
    flat_.low_halves = Tensor::empty(device_, DType::kUInt16, all, MemoryTag::kParameters);
    ops::split_masters(ctx, flat_.masters, flat_.model, flat_.low_halves);
    flat_.masters = Tensor();
  }
  masters_changed(ctx);
}

void ParameterState::masters_changed(const OpContext& ctx) {
  if (flat_.model && flat_.masters) ops::cast(ctx, flat_.masters, flat_.model);
  weights_updated(ctx);
}

void ParameterState::weights_updated(const OpContext& ctx) {
  for (const auto& [id, memory] : lent_) {
    Tensor target = memory;
    ops::cast(ctx, flat_.masters ? master(id) : model_view(id), target);
  }
}

void ParameterState::lend(nn::ParamId id, Tensor memory) {
  DS_CHECK(memory.contiguous() && memory.shape() == parameters_[id].shape, Code::kInternal,
           "lent memory must be packed and of the parameter's shape");
  lent_.emplace_back(id, std::move(memory));
}

bool ParameterState::lent(nn::ParamId id) const {
  return std::any_of(lent_.begin(), lent_.end(),
                     [id](const auto& loan) { return loan.first == id; });
}

void ParameterState::allocate_gradients() { allocate_gradients({}, DType::kFloat32); }

void ParameterState::allocate_gradients(const OpContext& ctx, DType type) {
  flat_.gradients =
      Tensor::zeros(device_, type, {layout_.trainable_elements()}, MemoryTag::kGradients);
  accumulation_type_ = type;
  gradient_ctx_ = ctx;
  open_gradients_.assign(type == DType::kFloat32 ? 0 : static_cast<size_t>(parameters_.size()),
                         Tensor());
}

void ParameterState::free_gradients() {
  flat_.gradients = Tensor();
  open_gradients_.clear();
  gradient_ctx_ = {};
}

void ParameterState::clear_gradients(const OpContext& ctx) {
  ops::fill(ctx, 0.0f, flat_.gradients);
  for (Tensor& open : open_gradients_) open = Tensor();
}

Tensor ParameterState::read_master(const OpContext& ctx, nn::ParamId id) const {
  if (flat_.masters) return master(id);
  Tensor joined = ctx.workspace(DType::kFloat32, parameters_[id].shape);
  ops::join_masters(ctx, view(flat_.model, id), view(flat_.low_halves, id), joined);
  return joined;
}

void ParameterState::write_master(const OpContext& ctx, nn::ParamId id, const Tensor& value) {
  if (flat_.masters) {
    Tensor target = master(id);
    ops::cast(ctx, value, target);
    if (flat_.model) {
      Tensor copy = model_view(id);
      ops::cast(ctx, value, copy);
    }
  } else {
    Tensor weights = view(flat_.model, id), low = view(flat_.low_halves, id);
    ops::split_masters(ctx, value, weights, low);
  }
  for (const auto& [lent, memory] : lent_) {
    if (lent != id) continue;
    Tensor target = memory;
    ops::cast(ctx, value, target);
  }
}

void ParameterState::replace_masters(const OpContext& ctx, Tensor masters) {
  if (flat_.low_halves) {
    ops::split_masters(ctx, masters, flat_.model, flat_.low_halves);
  } else {
    flat_.masters = std::move(masters);
  }
  masters_changed(ctx);
}

}  // namespace ds::zero
