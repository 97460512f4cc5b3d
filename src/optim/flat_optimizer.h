// What optimizers over the flat space share: groups and their rates, and state by tensor.
#pragma once

#include "optim/groups.h"
#include "optim/state_space.h"

namespace ds::optim {

// What every optimizer is made from.
struct Setup {
  OptimizerConfig config;
  std::vector<TensorPlace> places;
  std::shared_ptr<Device> device;
  ShardGroups shard_groups;               // of tensors that ranks cut
  std::shared_ptr<OffloadStore> offload;  // null where the update works on everything where it lies
  std::shared_ptr<ArrayFactory> arrays;   // null where all states lie in memory
  int64_t most_elements = 0;              // that an update takes at a time; 0: all that there are
};

class FlatOptimizer : public Optimizer {
 public:
  std::span<const double> base_rates() const override { return rates_; }
  std::vector<std::string> states(size_t tensor) const override;
  Tensor read_state(const OpContext& ctx, size_t tensor, const std::string& state) const override;
  void write_state(const OpContext& ctx, size_t tensor, const std::string& state,
                   const Tensor& value) override;
  OwnedRange owned(size_t tensor) const override;
  Tensor state_view(size_t tensor, const std::string& state) const override;
  void flush() override;
  void read_state_range(size_t tensor, const std::string& state, int64_t begin, int64_t end,
                        float* out) const override;
  void write_state_range(size_t tensor, const std::string& state, int64_t begin, int64_t end,
                         const float* values) override;

 protected:
  explicit FlatOptimizer(Setup setup);

  // Of the configured type, or another.
  StateSpace make_space(StateSpace::Options options,
                        std::optional<OptimizerStateType> type = {}) const;
  // Spaces are entered once, when the optimizer is made.
  void add_space(StateSpace space) { spaces_.push_back(std::move(space)); }
  const StateSpace& space(size_t index) const { return spaces_[index]; }

  const OptimizerConfig& whole_config() const { return setup_.config; }
  size_t group_count() const { return groups_.size(); }
  const OptimizerConfig& group(int32_t index) const { return groups_[static_cast<size_t>(index)]; }
  const std::vector<TensorPlace>& places() const { return setup_.places; }
  const TensorPlace& place(size_t index) const { return setup_.places[index]; }
  const ShardGroups& shard_groups() const { return setup_.shard_groups; }
  // Whether a tensor is in one of them.
  bool grouped(size_t tensor) const { return grouped_[tensor]; }
  OffloadStore* offload() const { return setup_.offload.get(); }
  static bool wholly_owned(const TensorPlace& place) {
    return place.end - place.begin == place.shape.elements();
  }
  static bool touched(const TensorPlace& place) { return place.begin < place.end; }
  // Throws kUnsupported for a tensor of which this rank owns a part; the second for one in no shard
  // group.
  void need_whole(const TensorPlace& place, const char* why) const;
  void need_whole_ungrouped(const std::function<bool(const TensorPlace&)>& of,
                            const char* why) const;

  // What tensors have in common that share constants.
  struct HyperClass {
    int32_t group = 0;
    bool decays = false;
    double rate_factor = 1;
    double decay_factor = 1;
    bool operator==(const HyperClass&) const = default;
  };
  const std::vector<HyperClass>& classes() const { return classes_; }
  // The number of a tensor's class, under which it finds its constants.
  int64_t hyper_key(size_t tensor) const { return class_of_[tensor]; }
  // Constants by class; `rate` picks each group's.
  std::vector<kernels::UpdateConstants> constants(
      kernels::UpdateRule rule, const UpdateStep& step,
      const std::function<double(size_t group)>& rate) const;
  // Weight decay of a group in this step.
  double decay_of(const UpdateStep& step, int32_t group) const;
  // `lr` is the group's.
  kernels::UpdateHyper hyper_of(const UpdateStep& step, const HyperClass& of, double lr) const;
  // Runs `update` on the arrays of a run of a space, which are mapped for it, from the offload
  // store and back, while those of `next` are fetched, if there is one; and on those of every run.
  // `there` is the context that the arrays are computed with: the step's, or that of a GPU in whose
  // memory those of this run lie.
  using UpdateRun =
      std::function<void(const OpContext& there, const StateRun&, ops::UpdateTensors&)>;
  void update_run(const OpContext& ctx, const StateSpace& space, const StateRun& run,
                  const StateRun* next, const FlatTensors& tensors, Writes writes,
                  const UpdateRun& update) const;
  void update_runs(const OpContext& ctx, const StateSpace& space, const FlatTensors& tensors,
                   Writes writes, const UpdateRun& update) const;
  // Of a run whose masters are updated: makes the copies that the model computes with.
  void publish(const OpContext& ctx, const StateSpace& space, const StateRun& run,
               const FlatTensors& tensors) const;
  const std::shared_ptr<Device>& state_device() const { return setup_.device; }
  // Opens a step: checks what it is given, and encodes states that were written.
  void begin_step(const UpdateStep& step, const FlatTensors& tensors);
  // Closes it, when its states rest.
  void end_step();

  std::vector<double> rates_;

 private:
  struct Found {
    size_t space;
    size_t state;
  };
  Found find_state(size_t tensor, const std::string& state) const;
  void check_range(size_t tensor, int64_t begin, int64_t end) const;
  double momentum_product(size_t group, int64_t step) const;

  Setup setup_;
  std::vector<OptimizerConfig> groups_;
  std::vector<HyperClass> classes_;
  std::vector<int64_t> class_of_;  // by tensor
  std::vector<bool> grouped_;      // by tensor
  // Of NAdam, by group: the product of the momenta of the first so many steps.
  struct MomentumProduct {
    int64_t steps = 0;
    double value = 1;
  };
  mutable std::vector<MomentumProduct> products_;
  std::vector<StateSpace> spaces_;
};

// One constructor function per kind; make_optimizer chooses.
std::unique_ptr<Optimizer> make_elementwise(Setup setup);  // all but the two below
std::unique_ptr<Optimizer> make_lamb(Setup setup);
std::unique_ptr<Optimizer> make_muon(Setup setup);

}  // namespace ds::optim
