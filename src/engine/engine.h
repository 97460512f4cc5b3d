// The training engine: accumulation, forward, backward, update, save and load of one model. The
// gradients are its own, from the model's loss, or the caller's.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "comm/communicator.h"
#include "comm/logger.h"
#include "config/config.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "engine/call_control.h"
#include "engine/load_options.h"
#include "engine/loss_sum.h"
#include "engine/product_timing.h"
#include "engine/report.h"
#include "engine/saved_blobs.h"
#include "engine/step_graphs.h"
#include "engine/step_metrics.h"
#include "engine/updater.h"
#include "models/model.h"
#include "observe/monitor.h"
#include "observe/timers.h"
#include "tokenizer/tokenizer.h"

namespace ds {

class BackgroundSave;
class CheckpointReader;
struct CheckpointWriterOptions;
class CheckpointWriter;
class PartHandover;
class PartWriter;
struct TensorTarget;

// One micro batch as callers give it; see ds_engine_forward.
struct MicroBatch {
  Tensor ids;          // [B, T]
  Tensor labels;       // [B, T], [B] for a classification head, [B, C] for one of numbers
  Tensor mask;         // [B, T], 0 = padding, or none
  Tensor segments;     // [B, T] or none
  Tensor token_types;  // [B, T] or none
};

class Engine {
 public:
  // `comm` may be null: this process alone. `reading`: how the configuration is read.
  Engine(std::string_view config_json, std::shared_ptr<models::Model> model,
         std::shared_ptr<Communicator> comm, const ReadOptions& reading = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Tensor forward(const MicroBatch& batch);
  void backward(const Tensor& loss);
  StepReport step();

  // The caller's gradients: fp32, bf16 or fp16, of the parameters' shapes, carrying loss_scale().
  // `indices` number parameters in the model's order; empty means 0, 1, 2, ...
  void add_gradients(std::span<const int64_t> indices, std::span<const Tensor* const> gradients);
  void set_gradient(const std::string& name, const Tensor& value);
  // The buffer that gradients gather in, without a copy.
  Tensor gradient_view(const std::string& name);
  // Gives up the open step.
  void discard_gradients();
  // The loss of the open micro batch, for reports; where the caller's gradients are all there is.
  void set_loss(double loss);
  // Whether the next steps update, whatever gradient_accumulation_steps says; none: as it says.
  void set_boundary(std::optional<bool> boundary);
  // Around passes whose gradients stay on this rank: the first step after them reduces their sum.
  // Stages 0 and 1; no step is made inside. Every rank calls both.
  void begin_no_sync();
  void end_no_sync();

  // For a program that computes with parameters of its own: makes them whole, in the type that the
  // engine computes in, until they are released as often. Every rank asks for the same ones.
  std::vector<Tensor> fetch_parameters(std::span<const int64_t> indices);
  void release_parameters(std::span<const int64_t> indices);
  // Whole fp32 copies of parameters, which rank `modifier` may change: scatter_parameters writes
  // its values back on every rank, and nothing when that is -1. No step can be made meanwhile.
  std::vector<Tensor> gather_parameters(std::span<const int64_t> indices);
  void scatter_parameters(std::span<const int64_t> indices, int modifier);
  // Ends a gather on this rank alone, whose changes nobody wants.
  void forget_gathered(std::span<const int64_t> indices);
  // What this rank owns of a parameter's flat elements, and those of its fp32 value, its gradient
  // or a state of the optimizer ("parameter", "gradient", "exp_avg"). Reading waits for nobody;
  // setting values is every rank's call, each with its part.
  zero::FlatRange local_range(const std::string& name);
  Tensor local_values(const std::string& name, const std::string& what);
  void set_local_values(const std::string& name, const std::string& what, const Tensor& values);

  // For a rank that has no further batches: takes part in the steps of the others, without adding
  // to them, until no rank has one. Every rank calls it in the end.
  void join();
  double loss_scale() const { return updater_->loss_scale(); }

  void set_dataset(DatasetPtr dataset);
  StepReport train_batch();
  double evaluate(const Dataset& dataset, int64_t max_batches);

  void save(const std::string& folder, const std::string& tag);
  // Waits for a save that goes on in the background; throws what became of it.
  void wait_for_save();
  void load(const std::string& folder, const std::string& tag, const LoadOptions& options = {});

  // Progress of the calls above, and their early end.
  CallControl& control() { return control_; }

  void set_tokenizer(std::shared_ptr<const Tokenizer> tokenizer) {
    tokenizer_ = std::move(tokenizer);
  }
  void set_client_state(Json state) { client_state_ = std::move(state); }
  const Json& client_state() const { return client_state_; }
  // Bytes of the caller by name, which checkpoints carry.
  SavedBlobs& blobs() { return blobs_; }

  const Config& config() const { return config_; }
  // {"config", "given", "origins", "warnings"}
  Json config_document() const;
  const std::shared_ptr<models::Model>& model() const { return model_; }
  Json memory_report() const;
  // Of the step that flops_profiler asked for; null before it.
  const Json& profile() const { return metrics_->profile(); }
  const Progress& progress() const { return progress_; }
  // As configured; parameters of the caller's own may be float32 all the same.
  DType compute_type() const;
  // The table of collectives so far; "" unless comms_logger asks for it.
  std::string comms_log() const { return comms_logger_ ? comms_logger_->table() : std::string(); }

  // Copies of whole fp32 tensors.
  Tensor gradient(const std::string& name);
  std::vector<std::string> optimizer_states(const std::string& name);
  Tensor optimizer_state(const std::string& name, const std::string& state);
  void set_optimizer_state(const std::string& name, const std::string& state, const Tensor& value);
  int64_t optimizer_steps() const { return updater_->steps(); }
  // Rates of the next step: of the default group, then of the others.
  const std::vector<double>& rates() const { return updater_->rates(); }
  void set_lr(double lr) { updater_->set_rates(lr); }

 private:
  enum class Phase { kIdle, kForwardDone, kBackwardDone };
  struct Pending;  // the tape between forward and backward

  ScopedTimer time_phase(const char* name) {
    return {config_.wall_clock_breakdown ? &timers_ : nullptr, name};
  }
  struct RankTotals {
    double loss_sum = 0;
    int64_t losses = 0;  // in the sum of all ranks
    int64_t tokens = 0;
    int64_t batches = 0;  // micro batches of all ranks in this step, without those of joined ranks
    int64_t samples = 0;
  };
  RankTotals rank_totals();
  double mean_loss(const RankTotals& totals, double share) const;
  void warn_of_uncounted_labels(const RankTotals& totals);
  void warn_of_other_size(int64_t samples);
  zero::ShareOptions share_options();
  void choose_sparse(zero::ShareOptions& options) const;
  std::unique_ptr<nn::Fp8Linears> make_fp8();
  void agree_on_fp8();
  void finish_fp8_step();
  bool offloads_optimizer() const;
  zero::Masters masters_of(DType compute, bool two_types) const;
  void log_collectives();
  void release_model() noexcept;
  OpContext context() { return {model_->device(), &pool_, gpu_policy_}; }
  OpContext host_context() { return {model_->host(), &pool_}; }
  models::Batch make_batch(const MicroBatch& inputs);
  Tensor make_labels(const Tensor& labels, const Tensor& ids);
  void run_forward(const models::Batch& batch, const Tensor& labels);
  uint32_t first_sample(const models::Batch& batch) const;
  nn::TapeOptions tape_options(const models::Batch& batch);
  nn::SummedLoss forward_pass(nn::Tape& tape, const models::Batch& batch, const nn::Labels& labels);
  void backward_pass(nn::Tape& tape, nn::GradientSlot& slot);
  void count_batch(const Tensor& ids, nn::MeanLoss loss, int64_t counted);
  std::unique_ptr<StepGraphs> make_graphs() const;
  void run_micro_batch(const MicroBatch& samples);
  bool run_recorded(const models::Batch& batch, const Tensor& labels);
  void run_empty_batch();
  bool uneven(const RankTotals& totals) const;
  StepReport nothing_left();
  void next_part(CallControl::Call& call, int64_t done);
  void run_backward();
  float loss_gradient() const;  // what backward starts with
  void drop_open_step();
  void weights_are_free();
  StepReport finish_micro_batch();
  bool close_micro_batch(bool reduce = true);
  bool at_boundary() const;
  StepReport finish_step();
  void check_gradients_given();
  StepReport apply_update();
  void begin_step_clock();
  void check_gradients_open() const;
  void need_whole_gradients();
  Tensor operand(const Tensor& given);
  void wait_for_readers(std::span<const Tensor* const> gradients);
  void reduce_what_is_open();
  std::vector<nn::ParamId> parameter_ids(std::span<const int64_t> indices, const char* what) const;
  void check_nothing_held(const char* what) const;
  void check_synced(const char* what) const;
  void check_unchanged(std::span<const nn::ParamId> ids);
  void let_go();
  nn::ParamId trainable(const std::string& name) const;
  void write_metrics(const StepReport& report);
  std::vector<int64_t> next_samples();
  void follow_ramp_up();
  double batch_loss(const Dataset& dataset, int64_t first, int64_t count, int64_t& counted);
  // What one rank has of the open step.
  struct RankShare {
    double loss_sum = 0;
    int64_t tokens = 0;
    int64_t losses = 0;  // in the sum
  };
  // What a checkpoint holds besides the bytes of tensors, checked.
  struct Restored {
    int64_t accumulated = 0;
    std::vector<TensorTarget> targets;
    std::vector<std::pair<nn::ParamId, Tensor>> fp8;  // of layers, as Fp8Linears saved them
    RankShare share;
    int64_t samples = 0;         // that random numbers of the open step have passed
    double gradient_factor = 1;  // what those of the open step are multiplied by
    Progress progress;
    Updater::Saved updater;
    Json client_state;
    SavedBlobs blobs;
    Json dataset;  // as describe_dataset gave it
    std::shared_ptr<const Tokenizer> tokenizer;
  };
  std::string agreed_tag(const std::string& tag);
  zero::FlatRange saved_share(nn::ParamId id) const;
  void save_tensors(PartWriter& part);
  void save_beside_training(std::shared_ptr<CheckpointWriter> writer,
                            std::shared_ptr<PartWriter> other,
                            const std::optional<PartHandover>& handover, const std::string& tag);
  std::vector<RankShare> open_shares();
  CheckpointWriterOptions writer_options(const std::string& folder, const std::string& tag,
                                         const std::vector<RankShare>& shares);
  void save_counters(PartWriter& part, const std::vector<RankShare>& shares);
  Json rate_config() const;
  void restore_tag(const std::string& folder, const std::string& tag, const LoadOptions& options);
  static void aim(TensorTarget& target, const Tensor& memory);
  void compare_settings(const CheckpointReader& reader, const LoadOptions& options) const;
  void check_dataset_as_loaded(const Dataset& dataset);
  RankShare restored_share(const CheckpointReader& reader, int64_t& all_tokens) const;
  double gradient_factor(const CheckpointReader& reader, const Updater::Saved& updater,
                         int64_t accumulated, int64_t consumed) const;
  Restored prepare_restore(const CheckpointReader& reader, const LoadOptions& options);
  void keep_open_step(const CheckpointReader& reader, const LoadOptions& options,
                      Restored& out) const;
  void read_targets(const CheckpointReader& reader, std::span<const TensorTarget> targets);
  void restore(CheckpointReader reader, const LoadOptions& options);
  void restore_gradients(const Restored& restored);
  void restore_counters(Restored restored, const CheckpointReader& reader,
                        const LoadOptions& options);
  void save_fp8(PartWriter& part) const;
  void restore_fp8_targets(const CheckpointReader& reader, Restored& out) const;
  std::vector<TensorTarget> restore_targets(const CheckpointReader& reader,
                                            const LoadOptions& options, bool with_gradients);
  void check_family(const CheckpointReader& reader) const;
  void check_compatible(const CheckpointReader& reader, const LoadOptions& options) const;

  Config config_;
  std::shared_ptr<models::Model> model_;
  std::shared_ptr<Communicator> comm_;
  ThreadPool pool_;
  const kernels::GpuPolicy gpu_policy_;
  ProductTiming product_timing_;
  std::unique_ptr<Updater> updater_;
  std::unique_ptr<MonitorSet> monitors_;
  std::unique_ptr<StepMetrics> metrics_;
  std::shared_ptr<CommsLogger> comms_logger_;
  WallClockTimers timers_;  // of the phases since the last step, with wall_clock_breakdown

  CallControl control_;
  DatasetPtr dataset_;
  std::optional<Sampler> sampler_;  // of dataset_
  std::shared_ptr<const Tokenizer> tokenizer_;
  Json client_state_;
  SavedBlobs blobs_;

  Phase phase_ = Phase::kIdle;
  std::unique_ptr<Stream> offload_stream_;  // of inputs that checkpointed segments keep
  std::unique_ptr<Pending> pending_;
  std::unique_ptr<StepGraphs> graphs_;  // with graph_harvesting
  bool forward_counted_ = false;        // the open micro batch went through forward
  std::optional<double> given_loss_;    // of the open micro batch, by the caller
  bool warned_uncounted_ = false, warned_sizes_ = false;
  Progress progress_;
  int64_t accumulated_ = 0;        // micro batches of the open step
  std::optional<bool> boundary_;   // set by the caller
  bool no_sync_ = false;           // between begin_no_sync and end_no_sync
  bool unreduced_ = false;         // the last backward was
  LossSum losses_;                 // of the micro batches of the open step
  int64_t step_tokens_ = 0;        // counted tokens of the open step
  int64_t step_batches_ = 0;       // micro batches of the open step that were this rank's own
  int64_t step_samples_ = 0;       // and what progress_.samples grew by
  int64_t step_first_sample_ = 0;  // of the next micro batch, counted from the step's first
  int64_t own_samples_ = 0;        // of which this rank read so many itself
  bool joined_ = false;            // inside join()
  bool all_joined_ = false;
  std::optional<double> step_began_;
  int64_t loaded_micro_steps_ = 0;  // progress_.micro_steps when there was nothing to lose
  std::string run_id_;              // of the checkpoints; a loaded run's goes on
  std::string checked_folder_;      // the last one that was searched for those of other runs
  Json loaded_dataset_;             // what the loaded run read; null when that is not known
  bool strict_dataset_ = false;     // another one is refused
  std::vector<bool> overwritten_;   // by parameter: written by a load that has not succeeded yet
  bool saving_together_ = false;    // a save of several ranks may be under way
  std::unique_ptr<BackgroundSave> background_;  // with checkpoint.writer.decoupled

  // What a program does with its own parameters in a micro batch: other ranks wait for the same, so
  // a rank that has joined does it again.
  struct OwnUse {
    enum class Kind { kFetch, kRelease, kGradient } kind;
    std::vector<nn::ParamId> ids;
  };
  std::vector<OwnUse> own_uses_, last_own_uses_;
  std::vector<int> fetched_;             // by parameter: not released so many times yet
  int64_t fetched_count_ = 0;            // in all
  std::vector<Tensor> gathered_;         // by parameter, while it is; none else
  std::vector<uint64_t> gathered_sums_;  // their checksums, with enable_sanity_checks
  int64_t gathered_count_ = 0;
  bool pass_open_ = false;  // of the caller's fetches
};

}  // namespace ds
