#include "zero/parameter_state.h"

#include "ops/elementwise.h"

namespace ds::zero {

ParameterState::ParameterState(const nn::ParameterSet& parameters, std::shared_ptr<Device> device)
    : parameters_(parameters),
      layout_(parameters),
      device_(std::move(device)),
      masters_(
          Tensor::zeros(device_, DType::kFloat32, {layout_.elements()}, MemoryTag::kParameters)) {}

Tensor ParameterState::view(const Tensor& flat, nn::ParamId id) const {
  const FlatRange range = layout_.range(id);
  return flat.slice(0, range.begin, range.end).view(parameters_[id].shape);
}

Tensor ParameterState::acquire(nn::ParamId id) {
  ++open_guards_;
  return view(model_ ? model_ : masters_, id);
}

void ParameterState::release(nn::ParamId) noexcept { --open_guards_; }

Tensor ParameterState::gradient(nn::ParamId id) {
  if (!parameters_[id].trainable) return {};
  DS_CHECK(gradients_, Code::kInternal, "backward without gradient buffers");
  return view(gradients_, id);
}

// One process owns every gradient: there is nothing to reduce.
void ParameterState::gradient_complete(nn::ParamId) {}

void ParameterState::set_compute_type(const OpContext& ctx, DType type) {
  DS_CHECK(type == DType::kFloat32 || type == DType::kBFloat16, Code::kUnsupported,
           "models compute in float32 or bfloat16, not ", dtype_name(type));
  DS_CHECK(open_guards_ == 0, Code::kInternal, "compute type changed while parameters are in use");
  compute_type_ = type;
  model_ = type == DType::kFloat32
               ? Tensor()
               : Tensor::empty(device_, type, {layout_.elements()}, MemoryTag::kParameters);
  masters_changed(ctx);
}

void ParameterState::masters_changed(const OpContext& ctx) {
  if (model_) ops::cast(ctx, masters_, model_);
}

void ParameterState::allocate_gradients() {
  gradients_ = Tensor::zeros(device_, DType::kFloat32, {layout_.trainable_elements()},
                             MemoryTag::kGradients);
}

void ParameterState::free_gradients() { gradients_ = Tensor(); }

void ParameterState::clear_gradients(const OpContext& ctx) { ops::fill(ctx, 0.0f, gradients_); }

}  // namespace ds::zero
