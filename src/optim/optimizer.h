// What the engine asks of an optimizer: one fused pass over the elements that this rank owns, and
// its state by tensor.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/config.h"
#include "ops/context.h"
#include "optim/array_factory.h"
#include "optim/offload_store.h"
#include "optim/shard_group.h"

namespace ds::optim {

// A trainable tensor, and the part of it that this rank owns. All owned parts lie in one space
// without overlap; the flat space holds whole tensors.
struct TensorPlace {
  std::string name;
  Shape shape;
  int64_t begin = 0;  // in the space of owned elements; begin = end when nothing is owned
  int64_t end = 0;
  int32_t group = 0;    // 0 = the default group, then OptimizerConfig::groups in order
  bool decays = false;  // weight decay applies to it
  int64_t first = 0;    // the tensor's element at `begin`
  int64_t flat = 0;     // of that element in the flat space
  // What its learning rate and its weight decay are multiplied by.
  double rate_factor = 1;
  double decay_factor = 1;
};

struct UpdateStep {
  std::vector<double> rates;    // learning rates, parallel to Optimizer::base_rates()
  std::optional<double> beta1;  // what OneCycle prescribes instead of the configured values
  std::optional<double> beta2;
  // What a schedule prescribes for groups without a weight decay of their own.
  std::optional<double> weight_decay = {};
  float grad_scale = 1;     // gradients are multiplied by it: 1 / loss scale, and the clip factor
  Tensor gate = {};         // on a GPU in its place, for those that take one: see ops::update_gate
  double norm = 0;          // of the gradients as they are; 0: not known
  int64_t epoch_steps = 0;  // of the data set; 0: not known
  // Of the states, with this one, where that is not the number of steps.
  std::optional<int64_t> updates = {};
};

// What a step did, of an optimizer that leaves a part of the elements for later steps.
struct UpdateExtent {
  bool everything = true;  // all elements are updated, or will be beside the next steps
  double chosen = 1;       // share of the elements that every step updates
  int64_t waiting = 0;     // steps whose gradients of the others wait
  bool chosen_anew = false;
};

// An array over the flat space or, when `compact`, over the space of owned elements.
struct FlatTensor : StoredArray {
  FlatTensor() = default;
  FlatTensor(Tensor memory, bool is_compact = false)
      : StoredArray(std::move(memory)), compact(is_compact) {}
  FlatTensor(std::shared_ptr<ArrayStore> store, bool is_compact)
      : StoredArray(std::move(store)), compact(is_compact) {}
  bool compact = false;
};

// Masters are fp32; or in the type that the model computes with, and its weights; or split (bf16
// weights in `model` and the rest of each fp32 number in `low_halves`).
struct FlatTensors {
  FlatTensor masters;     // empty when split
  FlatTensor low_halves;  // uint16; empty unless split
  // The copy that the model computes with, in memory: bf16, fp16, or fp32 of masters that are not
  // in memory. Empty where masters are what it computes with.
  FlatTensor model;
  FlatTensor gradients;  // fp32, bf16 or fp16
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Configured learning rates; a schedule applies to each.
  virtual std::span<const double> base_rates() const = 0;

  // Updates masters, state and model copy in place. With shard groups every rank calls it alike.
  virtual void step(const OpContext& ctx, const UpdateStep& step, FlatTensors& tensors) = 0;

  // Whether a step on a GPU may read its scale there, and whether it is to happen. A step counts
  // even if its gate is closed; the caller takes it back when it learns of that.
  virtual bool takes_gate() const { return false; }

  // Updates applied so far.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

  // Names of the state tensors that a tensor has, such as "exp_avg", the same on every rank.
  virtual std::vector<std::string> states(size_t tensor) const = 0;
  // Whole, as fp32 in the tensor's shape, whatever type the state is kept in. Throws kNotFound for
  // a state that the tensor does not have.
  virtual Tensor read_state(const OpContext& ctx, size_t tensor,
                            const std::string& state) const = 0;
  virtual void write_state(const OpContext& ctx, size_t tensor, const std::string& state,
                           const Tensor& value) = 0;

  // The memory of what this rank owns of a state, flat, where it is kept there as fp32 and the host
  // reads it; else no tensor.
  // Saves and loads go straight from and to it.
  virtual Tensor state_view(size_t, const std::string&) const { return {}; }

  // What this rank owns of a tensor, and the same for a part of that: the whole-tensor calls above
  // are for tensors that it owns wholly. The numbers are in the host's memory.
  virtual OwnedRange owned(size_t tensor) const = 0;
  virtual void read_state_range(size_t tensor, const std::string& state, int64_t begin, int64_t end,
                                float* out) const = 0;
  virtual void write_state_range(size_t tensor, const std::string& state, int64_t begin,
                                 int64_t end, const float* values) = 0;

  // Waits until states that were written rest, where that is not memory.
  virtual void flush() {}

  // ---- of those that leave a part of the elements for later steps ----
  // What the last step did.
  virtual std::optional<UpdateExtent> extent() const { return {}; }
  // Waits for what is under way, and puts masters and states that it keeps where they belong:
  // before others read or write them.
  virtual void put_back() {}
  // Whether the values of an update wait to be taken, which others that write masters would lose.
  virtual bool update_waits() const { return false; }
  // Before masters and states are loaded: puts back, and gives up what is under way.
  virtual void begin_load() {}
  // What it needs besides tensors to go on; null: nothing. check_saved throws kCorrupt for what
  // restore cannot take, which is called when steps and states are there; null: it was not saved.
  virtual Json save() const { return nullptr; }
  virtual void check_saved(const Json& /*saved*/) const {}
  virtual void restore(const Json& /*saved*/) {}
  // Whether a checkpoint that saved this needs no state of that name.
  virtual bool may_lack(const std::string& /*state*/, const Json& /*saved*/) const { return false; }

  // ---- of those that update elements ahead of the step ----
  // From now on it does so, with so many threads; `tensors` are those of all steps. Only for
  // optimizers that treat every element alike.
  virtual void go_ahead(const FlatTensors& /*tensors*/, int /*threads*/) {
    fail(Code::kInternal, "this optimizer does not update single elements ahead of a step");
  }
  // The next step is expected to be this one, of which the norm is not known: elements may be
  // updated once their gradients are complete. step() makes what is missing, and undoes what was
  // made for another step.
  virtual void expect_step(const OpContext& /*ctx*/, const UpdateStep& /*step*/,
                           const FlatTensors& /*tensors*/) {}
  // What this rank owns of a tensor's gradient is what it will be in that step.
  virtual void gradient_complete(size_t /*tensor*/) {}
  // Undoes what was updated ahead, bit for bit: before others read or write masters, states or
  // gradients, and where there is no step.
  virtual void undo_ahead() {}
  // Of the last step or, while one is expected, of that one so far.
  struct Ahead {
    double share = 0;     // of the own elements, updated ahead of it
    bool undone = false;  // updates were undone since the step before
  };
  virtual std::optional<Ahead> ahead() const { return {}; }

  // LAMB: by tensor, of the last update, where this rank owns a part of it; empty for the others.
  virtual std::span<const double> trust_ratios() const { return {}; }

 protected:
  int64_t steps_ = 0;
};

// `places` are all trainable tensors. LAMB and Muon refuse tensors that are cut and in no shard
// group. States are made in the memory of `device`, or by a factory that makes them. With an
// offload store they rest there with masters and gradients, and updates go through it. Updates that
// need no whole tensors take `most_elements` at a time; 0: as many as there are.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config,
                                          std::vector<TensorPlace> places,
                                          const std::shared_ptr<Device>& device,
                                          ShardGroups shard_groups = {},
                                          std::shared_ptr<OffloadStore> offload = nullptr,
                                          std::shared_ptr<ArrayFactory> arrays = nullptr,
                                          int64_t most_elements = 0);

// ZenFlow's AdamW or Adam, likewise.
std::unique_ptr<Optimizer> make_zenflow(const OptimizerConfig& config,
                                        const ZeroConfig::ZenFlow& options,
                                        std::vector<TensorPlace> places,
                                        const std::shared_ptr<Device>& device,
                                        ShardGroups shard_groups = {},
                                        std::shared_ptr<OffloadStore> offload = nullptr,
                                        std::shared_ptr<ArrayFactory> arrays = nullptr);

// Places that hold whole tensors at [begin, end) of the flat space, as a rank that owns
// [from, to) of it sees them: its space is the flat one.
std::vector<TensorPlace> owned_places(std::vector<TensorPlace> whole, int64_t from, int64_t to);

}  // namespace ds::optim
