// The training engine of one model: it conducts its parts, each of one subject, in the order that a
// call needs. The gradients are its own, from the model's loss, or the caller's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/options.h"
#include "engine/call_control.h"
#include "engine/load_options.h"
#include "engine/micro_batch.h"
#include "engine/report.h"
#include "tensor/tensor.h"

namespace ds {

class CheckpointLoader;
class CheckpointSaver;
class CommsLogger;
class Communicator;
class Config;
class DataFeed;
class Dataset;
class ExternalGradients;
class ParameterScopes;
class ParameterValues;
class StepGuard;
class StepObserver;
class Trainer;
class Updater;
struct CallerState;
struct OpenStep;
struct RunContext;
namespace models {
class Model;
}
namespace optim {
class ArrayFactory;
}

class Engine {
 public:
  // `comm` may be null: this process alone. `reading`: how the configuration is read. `arrays`
  // makes the arrays of training state that do not lie in memory; null: all do.
  Engine(std::string_view config_json, std::shared_ptr<models::Model> model,
         std::shared_ptr<Communicator> comm, const ReadOptions& reading = {},
         std::shared_ptr<optim::ArrayFactory> arrays = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Tensor forward(const MicroBatch& batch);
  void backward(const Tensor& loss);
  StepReport step();
  // Gives up the open step.
  void discard_gradients();
  // Whether the next steps update, whatever gradient_accumulation_steps says; none: as it says.
  void set_boundary(std::optional<bool> boundary);
  // For a rank that has no further batches: takes part in the steps of the others, without adding
  // to them, until no rank has one. Every rank calls it in the end.
  void join();

  void set_dataset(std::shared_ptr<const Dataset> dataset);
  StepReport train_batch();
  double evaluate(const Dataset& dataset, int64_t max_batches);

  void save(const std::string& folder, const std::string& tag);
  // Waits for a save that goes on in the background; throws what became of it.
  void wait_for_save();
  void load(const std::string& folder, const std::string& tag, const LoadOptions& options = {});

  // Progress of the calls above, and their early end.
  CallControl& control() { return control_; }

  // The caller's gradients and, for a program that computes with parameters of its own, these; what
  // callers read and set of both; and what checkpoints carry for the caller.
  ExternalGradients& gradients() { return *gradients_; }
  ParameterScopes& scopes() { return *scopes_; }
  ParameterValues& values() { return *values_; }
  CallerState& caller_state() { return *caller_; }

  const Config& config() const;
  // {"config", "given", "origins", "warnings"}
  Json config_document() const;
  const std::shared_ptr<models::Model>& model() const;
  Json memory_report() const;
  // Of the step that flops_profiler asked for; null before it.
  const Json& profile() const;
  // Loads and losses of the last step's experts; null where there are none.
  const Json& experts() const;
  const Progress& progress() const;
  // As configured; parameters of the caller's own may be float32 all the same.
  DType compute_type() const;
  // The table of collectives so far; "" unless comms_logger asks for it.
  std::string comms_log() const;

  // With super_offload: the share of this rank's elements that is updated ahead of the open step
  // or, when none is open, was ahead of the last one. 0 without.
  double updated_ahead() const;
  double loss_scale() const;
  int64_t optimizer_steps() const;
  // Rates of the next step: of the default group, then of the others.
  const std::vector<double>& rates() const;
  void set_lr(double lr);

 private:
  void make_parts();

  CallControl control_;
  std::unique_ptr<RunContext> run_;
  std::shared_ptr<CommsLogger> comms_logger_;
  std::unique_ptr<OpenStep> open_;
  std::unique_ptr<StepGuard> guard_;
  std::unique_ptr<CallerState> caller_;
  std::unique_ptr<StepObserver> observer_;
  std::unique_ptr<Updater> updater_;
  std::unique_ptr<DataFeed> feed_;
  std::unique_ptr<ParameterScopes> scopes_;
  std::unique_ptr<ExternalGradients> gradients_;
  std::unique_ptr<ParameterValues> values_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<CheckpointSaver> saver_;
  std::unique_ptr<CheckpointLoader> loader_;
};

}  // namespace ds
