// The state of training: masters, the weights that follow from them, and gradients, over arrays
// that lie whole on one device until share() spreads them over ranks, offload() moves them to the
// host, or share() does both. Until somebody needs them, masters need not exist at all. An engine
// makes it of the weights that a model holds; while it trains, it is what the model's users read
// and write.
//
// It owns the order of a step: gradients are given, reduce() completes them, and commit() runs the
// update and lets everything follow.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "mesh/mesh.h"
#include "nn/model_weights.h"
#include "optim/optimizer.h"
#include "zero/gradients.h"
#include "zero/masters.h"
#include "zero/share_options.h"
#include "zero/state_arrays.h"
#include "zero/weights.h"

namespace ds::zero {

class TrainState final : public nn::ModelWeights {
 public:
  // Masters are zero or, with a loader, do not exist before somebody needs them.
  TrainState(const nn::ParameterSet& parameters, std::shared_ptr<Device> device,
             std::shared_ptr<const nn::WeightLoader> loader = nullptr);
  // The weights that somebody held so far, in the same memory.
  TrainState(const nn::ParameterSet& parameters, std::shared_ptr<Device> device,
             const nn::WholeWeights& whole);
  ~TrainState() override;

  // nn::ModelWeights
  void make(const OpContext& ctx) override { masters_.make(ctx); }
  nn::ParameterReader& reader() override {
    arrays_.before_reading();  // some weights are masters
    return weights_;
  }
  void check_not_lost() const override { weights_.check_not_lost(); }
  Tensor read(const OpContext& ctx, nn::ParamId id) const override;
  void write(const OpContext& ctx, nn::ParamId id, const Tensor& value) override;
  void read_in_parts(const OpContext& ctx, nn::ParamId id, int64_t unit,
                     const PartTaker& take) const override;
  // Also of the last commit: masters, states and weights are of two steps then. In memory nothing
  // fails half way.
  bool half_written() const override { return half_updated_; }
  bool whole() const override { return weights_.whole(); }
  Tensor view(const OpContext& ctx, nn::ParamId id) override;
  bool computes_with_master(nn::ParamId id) const override;
  nn::BorrowedMemory& borrowed() override { return weights_.borrowed(); }
  bool writes_files() const override;
  nn::WholeWeights take(const OpContext& ctx) override;

  Masters& masters() { return masters_; }
  const Masters& masters() const { return masters_; }
  Weights& weights() { return weights_; }
  const Weights& weights() const { return weights_; }
  Gradients& gradients() { return gradients_; }
  const Gradients& gradients() const { return gradients_; }
  StateArrays& arrays() { return arrays_; }
  const StateArrays& arrays() const { return arrays_; }
  const Layout& layout() const { return arrays_.layout; }
  const nn::ParameterSet& parameters() const { return arrays_.parameters; }

  // Where masters, low halves and gradients lie that are made from here on, and the optimizer's
  // states: in memory, or where the factory makes them. kUnsupported for a model on a GPU.
  void place_arrays(std::shared_ptr<optim::ArrayFactory> factory);
  // fp32, bf16 or fp16; the lower types keep a rounded copy of fp32 masters, or what `form` says.
  // `fp32`, by parameter, are computed with in fp32 all the same. Needs no open guard.
  void set_compute_type(const OpContext& ctx, DType type, MasterForm form = MasterForm::kFp32,
                        const std::vector<bool>& fp32 = {});

  // Collective: spreads the state over the ranks of the mesh, which start with the masters of the
  // first; where all have one loader, each makes its own part. Needs no open guard. From now on
  // calls marked "every rank" are collective too. With `options.offload` what a rank owns lies in
  // its host's memory, as offload() has it.
  void share(const OpContext& ctx, const Mesh& mesh, const ShareOptions& options, DType type,
             MasterForm form);
  // Ends that, without waiting for anybody. Weights that are whole stay, in the precision they were
  // computed with; of weights in pieces nothing usable is left, unless one rank has all of them.
  void unshare(const OpContext& ctx);
  bool shared() const { return arrays_.shared(); }
  // The ranks that tensors are cut among, for an optimizer of these parameters: a group for each
  // domain that has tensors of which ranks have parts. Valid while shared.
  optim::ShardGroups shard_groups(std::span<const nn::ParamId> tensors) const;

  // Keeps masters, gradients and the optimizer's state in the host's memory from now on, and on the
  // GPU the weights in the compute type alone. Everything else goes on as before; flat tensors and
  // their views lie on the host.
  void offload(const OpContext& ctx, const OffloadOptions& options, DType type, bool split);
  // Ends that. The masters come to the GPU when somebody computes with them, or asks for it.
  void end_offload(const OpContext& ctx);
  // For an optimizer of these parameters: its offload store; null where the state simply lies in
  // arrays().state_memory().
  std::shared_ptr<optim::OffloadStore> offload_store() const { return arrays_.host_store; }

  // A forward with its backward is over: what is left of the gradients is reduced, what was
  // gathered goes (every rank). And a micro batch of the caller's own gradients.
  void finish_backward();
  void finish_external_micro_batch(const OpContext& ctx);

  // Every gradient that was given is in the step's from here on: averaged over the ranks, and zero
  // where none was given (every rank).
  void reduce(const OpContext& ctx);
  // `update(ctx, arrays)` writes masters and the copy in the compute type, in the memory of the
  // context that it is given; then weights follow (every rank).
  template <class Update>
  void commit(const OpContext& ctx, const Update& update) {
    if (arrays_.host_store) arrays_.host_store->open_update();
    half_updated_ = static_cast<bool>(arrays_.factory);
    update(arrays_.state_context(ctx), arrays_.flat);
    arrays_.flush_masters();
    half_updated_ = false;
    weights_.follow_update(ctx);
  }
  // Runs what sets values of one parameter here: what it wrote rests when this returns, and an
  // error in the middle is reported by half_written().
  void set_values(const std::function<void()>& body);

 private:
  void reset_to_fp32(const OpContext& ctx);
  void lay_out_shared(const OpContext& ctx, const Layout& layout, const ShareOptions& options,
                      DType type, MasterForm form);
  void lay_out_on_host(const OpContext& ctx, const Layout& layout, const ShareOptions& options,
                       DType type, bool split);

  StateArrays arrays_;
  Weights weights_;
  Masters masters_;
  Gradients gradients_;
  bool half_updated_ = false;  // or half written
};

}  // namespace ds::zero
