// From accumulated gradients to new weights: the global norm, the overflow check, the loss scale,
// the clip, learning rates and the optimizer's pass.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "engine/report.h"
#include "kernels/optimizer/update_gate.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "zero/train_state.h"

namespace ds {

class Updater {
 public:
  // `ahead`: elements are updated before their step is made, as soon as it is likely.
  Updater(const Config& config, const zero::TrainState& state, bool ahead);

  struct Outcome {
    bool applied = false;
    double grad_norm = 0;   // of the unscaled gradients, before clipping; -1 when not finite
    double lr = 0;          // that this step used
    double loss_scale = 1;  // that the gradients carried
    std::string first_bad_tensor;
    int64_t first_bad_element = -1;
    double first_bad_value = 0;
    std::optional<optim::UpdateExtent> extent;     // of optimizers that leave a part for later
    std::optional<optim::Optimizer::Ahead> ahead;  // of those that update ahead of the step
  };
  // Updates weights and optimizer state, or leaves both when a gradient is not finite and the
  // configuration says so. Gradients are left for the caller to clear.
  // `share` multiplies the gradients: where some ranks had fewer micro batches than others.
  Outcome update(const OpContext& ctx, zero::TrainState& state, double share = 1);

  // Before the backward that is likely to be the step's last: elements may be updated from now on,
  // as update() will if nothing is clipped or overflows. Not where the last step was not like that.
  void update_ahead(zero::TrainState& state, const OpContext& ctx);
  // That step does not come like this, or not yet.
  void undo_ahead() { optimizer_->undo_ahead(); }

  // Which parameters decay, for the log; empty where that needs no word.
  std::string describe_decay() const;

  // What losses are multiplied by before their gradients are taken.
  double loss_scale() const { return scaler_.scale(); }
  // Steps skipped since the last applied one.
  int64_t consecutive_skips() const { return consecutive_skips_; }
  // Why training cannot go on, empty while it can.
  std::string stop_reason() const;

  // Rates of the next step, one per base rate of the optimizer.
  const std::vector<double>& rates() const { return rates_; }
  void set_rates(double lr);

  // Of the data set that is read; 0: not known.
  void set_epoch_steps(int64_t steps) { epoch_steps_ = steps; }

  int64_t steps() const { return optimizer_->steps(); }
  const std::vector<optim::TensorPlace>& places() const { return places_; }
  // Index of a parameter's place; throws kNotFound for a frozen one.
  size_t place(nn::ParamId id) const;
  const optim::Optimizer& optimizer() const { return *optimizer_; }
  optim::Optimizer& optimizer() { return *optimizer_; }

  // Everything but the optimizer's tensors.
  Json save() const;
  // What of that goes on.
  struct Rules {
    bool same_rates = false;   // the configuration says the same of learning rates
    bool scale_moves = false;  // the saved loss scale is that of a dynamic scaler
    bool optimizer = true;     // the optimizer's tensors are restored, and the loss scale
    bool schedule = true;
  };
  // What save() gave, checked, ...
  struct Saved {
    Rules rules;
    int64_t steps = 0;
    int64_t schedule_steps = 0;
    int64_t consecutive_skips = 0;
    std::vector<double> rates;
    optim::LossScaler scaler;
    double gradient_scale = 1;  // that gradients of an open step carry
    Json optimizer;             // Optimizer::save; null: none
  };
  Saved read(const Json& saved, const Rules& rules) const;
  // ... and taken over, once the optimizer's tensors are restored.
  void restore(Saved saved);

 private:
  // Steps that the schedules count: those of the optimizer, unless one of them was restored alone.
  int64_t schedule_steps() const { return optimizer_->steps() + schedule_lead_; }
  void follow_schedule();
  optim::UpdateStep next_step() const;
  kernels::GateRule gate_rule(double share) const;
  float plain_scale() const;
  kernels::UpdateGate update_after_norm(const OpContext& ctx, zero::TrainState& state,
                                        const kernels::GateRule& rule);
  kernels::UpdateGate update_with_gate(const OpContext& ctx, zero::TrainState& state,
                                       const kernels::GateRule& rule);

  OptimizerConfig optimizer_config_;
  double clipping_;
  double skip_above_;
  bool may_skip_;
  bool ahead_;
  bool plain_ = true;  // the last step neither clipped nor skipped its gradients
  int64_t max_consecutive_skips_;
  std::shared_ptr<Device> device_;  // where the optimizer's state lies
  std::vector<optim::TensorPlace> places_;
  std::vector<int64_t> place_of_;  // by parameter, -1 for frozen ones
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<optim::Schedule> schedules_;  // one per base rate
  optim::LossScaler scaler_;
  std::vector<double> rates_;
  int64_t epoch_steps_ = 0;
  int64_t schedule_lead_ = 0;
  int64_t consecutive_skips_ = 0;
};

}  // namespace ds
