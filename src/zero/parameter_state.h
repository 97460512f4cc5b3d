// The bytes behind a model's parameters: fp32 masters, the copy in the compute type, gradients.
// This placement keeps all of them whole on one device; sharded placements implement the same
// guards.
#pragma once

#include "nn/parameter_store.h"
#include "ops/context.h"
#include "zero/flat_layout.h"

namespace ds::zero {

class ParameterState : public nn::ParameterStore {
 public:
  ParameterState(const nn::ParameterSet& parameters, std::shared_ptr<Device> device);

  // nn::ParameterStore
  Tensor acquire(nn::ParamId id) override;
  void release(nn::ParamId id) noexcept override;
  Tensor gradient(nn::ParamId id) override;
  void gradient_complete(nn::ParamId id) override;
  DType compute_type() const override { return compute_type_; }

  const FlatLayout& layout() const { return layout_; }
  const nn::ParameterSet& parameters() const { return parameters_; }

  // fp32 or bf16; bf16 keeps a rounded copy of the masters. Needs no open guard.
  void set_compute_type(const OpContext& ctx, DType type);
  // Refreshes the copy in the compute type after masters were written.
  void masters_changed(const OpContext& ctx);

  // Gradient buffers exist only while somebody trains.
  void allocate_gradients();
  void free_gradients();
  void clear_gradients(const OpContext& ctx);

  // Flat views. `model` is empty in fp32, where the masters are the model.
  Tensor& masters() { return masters_; }
  Tensor& model() { return model_; }
  Tensor& gradients() { return gradients_; }

  // Whole tensors by parameter, as views.
  Tensor master(nn::ParamId id) const { return view(masters_, id); }
  Tensor gradient_view(nn::ParamId id) const { return view(gradients_, id); }
  Tensor view(const Tensor& flat, nn::ParamId id) const;

 private:
  const nn::ParameterSet& parameters_;
  FlatLayout layout_;
  std::shared_ptr<Device> device_;
  DType compute_type_ = DType::kFloat32;
  Tensor masters_;
  Tensor model_;
  Tensor gradients_;
  int open_guards_ = 0;
};

}  // namespace ds::zero
