#include "zero/parameter_state.h"

#include <algorithm>
#include <cstring>

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

// True once after each clear: the gradient is empty, and the caller fills it.
bool ParameterState::take_empty(nn::ParamId id) {
  if (empty_count_ == 0 || !empty_gradients_[static_cast<size_t>(id)]) return false;
  empty_gradients_[static_cast<size_t>(id)] = false;
  --empty_count_;
  return true;
}

void ParameterState::zero_gradient(const OpContext& ctx, nn::ParamId id) {
  Tensor target = view(flat_.gradients, id);
  if (ctx.pool != nullptr) {
    ops::fill(ctx, 0.0f, target);
  } else {
    std::memset(target.raw(), 0, static_cast<size_t>(target.bytes()));
  }
}

ParameterState::GradientTarget ParameterState::gradient_target(nn::ParamId id) {
  if (!parameters_[id].trainable) return {};
  DS_CHECK(flat_.gradients, Code::kInternal, "backward without gradient buffers");
  if (accumulation_type_ == DType::kFloat32) return {view(flat_.gradients, id), !take_empty(id)};
  Tensor& sum = open_gradients_[static_cast<size_t>(id)];
  const bool add = static_cast<bool>(sum);
  if (!add) {
    sum = Tensor::empty(device_, DType::kFloat32, parameters_[id].shape, MemoryTag::kGradients);
  }
  return {sum, add};
}

Tensor ParameterState::gradient(nn::ParamId id) {
  GradientTarget target = gradient_target(id);
  if (target.add || !target.sum) return target.sum;
  if (accumulation_type_ == DType::kFloat32) {
    zero_gradient(gradient_ctx_, id);
  } else {
    ops::fill(gradient_ctx_, 0.0f, target.sum);
  }
  return target.sum;
}

// One process owns every gradient: there is nothing to reduce.
void ParameterState::gradient_complete(nn::ParamId id) {
  if (accumulation_type_ == DType::kFloat32 || !parameters_[id].trainable) return;
  Tensor& sum = open_gradients_[static_cast<size_t>(id)];
  if (!sum) return;
  Tensor target = view(flat_.gradients, id);
  if (take_empty(id)) {
    ops::cast(gradient_ctx_, sum, target);
  } else {
    ops::accumulate(gradient_ctx_, sum, 1.0f, target);
  }
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
  empty_count_ = 0;
  clear_at_once_ = false;
}

void ParameterState::free_gradients() {
  flat_.gradients = Tensor();
  open_gradients_.clear();
  gradient_ctx_ = {};
  empty_count_ = 0;
}

void ParameterState::clear_gradients(const OpContext& ctx) {
  for (Tensor& open : open_gradients_) open = Tensor();
  if (clear_at_once_) {
    ops::fill(ctx, 0.0f, flat_.gradients);
    return;
  }
  empty_count_ = 0;
  empty_gradients_.assign(static_cast<size_t>(parameters_.size()), false);
  for (nn::ParamId id = 0; id < parameters_.size(); ++id) {
    if (!parameters_[id].trainable) continue;
    empty_gradients_[static_cast<size_t>(id)] = true;
    ++empty_count_;
  }
}

void ParameterState::settle_gradients(const OpContext& ctx) {
  for (nn::ParamId id = 0; empty_count_ > 0 && id < parameters_.size(); ++id) {
    if (take_empty(id)) zero_gradient(ctx, id);
  }
}

void ParameterState::clear_gradients_at_once(const OpContext& ctx) {
  settle_gradients(ctx);
  clear_at_once_ = true;
}

void ParameterState::replace_gradients(Tensor gradients) {
  flat_.gradients = std::move(gradients);
  empty_count_ = 0;
}

const Tensor& ParameterState::gradients() const {
  DS_CHECK(empty_count_ == 0, Code::kInternal, "gradients were read before they were settled");
  return flat_.gradients;
}

Tensor ParameterState::gradient_view(nn::ParamId id) const {
  DS_CHECK(empty_count_ == 0, Code::kInternal, "a gradient was read before they were settled");
  return view(flat_.gradients, id);
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
