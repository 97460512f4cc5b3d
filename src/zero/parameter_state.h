// The bytes behind a model's parameters: fp32 masters, the copy in the compute type, gradients,
// and memory that the caller lent. This placement keeps all of them whole on one device; sharded
// placements implement the same guards.
#pragma once

#include "nn/parameter_store.h"
#include "ops/context.h"
#include "optim/optimizer.h"
#include "zero/flat_layout.h"

namespace ds::zero {

class ParameterState : public nn::ParameterStore {
 public:
  ParameterState(const nn::ParameterSet& parameters, std::shared_ptr<Device> device);

  // nn::ParameterStore
  Tensor acquire(nn::ParamId id) override;
  void release(nn::ParamId id) noexcept override;
  Tensor gradient(nn::ParamId id) override;
  GradientTarget gradient_target(nn::ParamId id) override;
  void gradient_complete(nn::ParamId id) override;
  DType compute_type() const override { return compute_type_; }

  const FlatLayout& layout() const { return layout_; }
  const nn::ParameterSet& parameters() const override { return parameters_; }

  // fp32, bf16 or fp16; the lower types keep a rounded copy of the masters. With `split` (bf16
  // only) the copy and the bits that it lacks take the masters' place. Needs no open guard.
  void set_compute_type(const OpContext& ctx, DType type, bool split = false);
  // Refreshes the copy in the compute type, and lent memory, after masters were written.
  void masters_changed(const OpContext& ctx);
  // The same after an update that wrote masters and copy together.
  void weights_updated(const OpContext& ctx);

  // A caller's tensor that receives each new value of a parameter, in its own type.
  void lend(nn::ParamId id, Tensor memory);
  bool lent(nn::ParamId id) const;

  // Gradient buffers exist only while somebody trains. Types below fp32 sum a micro batch in fp32
  // and round when it is added, with the threads of `ctx`, which must live until free_gradients.
  void allocate_gradients();  // fp32
  void allocate_gradients(const OpContext& ctx, DType type);
  void free_gradients();
  // Empties the gradients. The memory is cleared later, and only where backward does not write: by
  // settle_gradients, which must come before anybody looks at the flat gradients. Once
  // `clear_gradients_at_once` was called, because others hold views, clearing is done right here.
  void clear_gradients(const OpContext& ctx);
  void settle_gradients(const OpContext& ctx);
  void clear_gradients_at_once(const OpContext& ctx);
  // All gradients: a flat tensor like the present one.
  void replace_gradients(Tensor gradients);
  DType accumulation_type() const { return accumulation_type_; }

  // Flat views. `masters` is empty while they are split; `model` is empty in fp32, where the
  // masters are the model.
  Tensor& masters() { return flat_.masters; }
  const Tensor& gradients() const;
  optim::FlatTensors& flat() { return flat_; }

  // Whole tensors by parameter, as views; `master` only while masters are not split.
  Tensor master(nn::ParamId id) const { return view(flat_.masters, id); }
  Tensor gradient_view(nn::ParamId id) const;
  Tensor model_view(nn::ParamId id) const {
    return view(flat_.model ? flat_.model : flat_.masters, id);
  }
  Tensor view(const Tensor& flat, nn::ParamId id) const;

  // The fp32 master, a view or, while masters are split, a copy.
  Tensor read_master(const OpContext& ctx, nn::ParamId id) const;
  // Sets a master (fp32, packed) and everything that follows from it.
  void write_master(const OpContext& ctx, nn::ParamId id, const Tensor& value);
  // Replaces all masters: a flat fp32 tensor over the whole space.
  void replace_masters(const OpContext& ctx, Tensor masters);

 private:
  void zero_gradient(const OpContext& ctx, nn::ParamId id);
  bool take_empty(nn::ParamId id);

  const nn::ParameterSet& parameters_;
  FlatLayout layout_;
  std::shared_ptr<Device> device_;
  DType compute_type_ = DType::kFloat32;
  DType accumulation_type_ = DType::kFloat32;
  optim::FlatTensors flat_;
  std::vector<Tensor> open_gradients_;  // fp32 sums of this micro batch, by parameter
  OpContext gradient_ctx_;
  std::vector<bool> empty_gradients_;  // by parameter: what the memory holds does not count
  int64_t empty_count_ = 0;
  bool clear_at_once_ = false;
  std::vector<std::pair<nn::ParamId, Tensor>> lent_;
  int open_guards_ = 0;
};

}  // namespace ds::zero
