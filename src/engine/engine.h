// The training engine: accumulation, forward, backward, update, save and load of one model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "comm/communicator.h"
#include "config/config.h"
#include "data/gpt_dataset.h"
#include "data/tokenizer.h"
#include "engine/report.h"
#include "models/model.h"
#include "observe/monitor.h"
#include "observe/timers.h"
#include "optim/adam.h"
#include "optim/schedule.h"

namespace ds {

class CheckpointReader;

class Engine {
 public:
  // `comm` may be null: this process alone.
  Engine(std::string_view config_json, std::shared_ptr<models::Model> model,
         std::shared_ptr<Communicator> comm);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // One micro batch of the caller. ids and labels [B, T], mask [B, T] or none; see ds.h.
  Tensor forward(const Tensor& ids, const Tensor& labels, const Tensor& mask);
  void backward(const Tensor& loss);
  StepReport step();

  void set_dataset(std::shared_ptr<const GptDataset> dataset);
  StepReport train_batch();
  double evaluate(const GptDataset& dataset, int64_t max_batches);

  void save(const std::string& folder, const std::string& tag);
  void load(const std::string& folder, const std::string& tag);

  void set_tokenizer(std::shared_ptr<const Tokenizer> tokenizer) {
    tokenizer_ = std::move(tokenizer);
  }
  void set_client_state(Json state) { client_state_ = std::move(state); }
  const Json& client_state() const { return client_state_; }

  const Config& config() const { return config_; }
  // {"config", "origins", "warnings"}
  Json config_document() const;
  const std::shared_ptr<models::Model>& model() const { return model_; }
  Json memory_report() const;
  const Progress& progress() const { return progress_; }

  // Copies of whole fp32 tensors.
  Tensor gradient(const std::string& name);
  Tensor optimizer_state(const std::string& name, const std::string& state);
  void set_optimizer_state(const std::string& name, const std::string& state, const Tensor& value);
  int64_t optimizer_steps() const { return adam_->steps(); }
  double lr() const { return lr_; }
  void set_lr(double lr);

 private:
  enum class Phase { kIdle, kForwardDone, kBackwardDone };
  struct Pending;  // the tape between forward and backward

  ScopedTimer time_phase(const char* name) {
    return {config_.wall_clock_breakdown ? &timers_ : nullptr, name};
  }
  OpContext context() { return {model_->device(), &pool_}; }
  Tensor run_forward(const models::Batch& batch, const Tensor& labels);
  void run_backward();
  void drop_open_step();
  StepReport finish_micro_batch();
  StepReport apply_update();
  std::string find_bad_tensor();
  void write_metrics(const StepReport& report);
  models::Batch make_batch(const Tensor& ids, const Tensor& mask);
  int64_t sample_index(int64_t position);
  double batch_loss(const GptDataset& dataset, int64_t first, int64_t count, int64_t& counted);
  void restore(const CheckpointReader& reader);
  void check_compatible(const CheckpointReader& reader) const;
  Tensor state_tensor(const std::string& state);

  Config config_;
  std::shared_ptr<models::Model> model_;
  std::shared_ptr<Communicator> comm_;
  ThreadPool pool_;
  optim::Schedule schedule_;
  std::unique_ptr<optim::Adam> adam_;
  std::unique_ptr<MonitorSet> monitors_;
  WallClockTimers timers_;  // of the phases since the last step, with wall_clock_breakdown

  std::shared_ptr<const GptDataset> dataset_;
  std::vector<int64_t> order_;  // of the samples in pass `order_epoch_`, when that is not the first
  int64_t order_epoch_ = 0;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Json client_state_;

  Phase phase_ = Phase::kIdle;
  std::unique_ptr<Pending> pending_;
  Progress progress_;
  int64_t accumulated_ = 0;  // micro batches of the open step
  double lr_ = 0;
  double loss_sum_ = 0;      // of the micro batches of the open step
  int64_t step_tokens_ = 0;  // counted tokens of the open step
  std::optional<double> step_began_;
};

}  // namespace ds
