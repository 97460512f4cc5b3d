// Forward and backward passes of a built-in model: the tape between them, and the CUDA graphs that
// stand for both.
#pragma once

#include <memory>

#include "engine/step_graphs.h"
#include "models/architecture.h"
#include "nn/kept_inputs.h"
#include "nn/loss.h"
#include "nn/tape.h"
#include "tensor/store_room.h"

namespace ds {

struct OpenStep;
struct RunContext;
class StepObserver;
class Updater;

class ModelPasses {
 public:
  ModelPasses(RunContext& run, OpenStep& open, StepObserver& observer, const Updater& updater);
  ~ModelPasses();

  // Does not wait for a GPU. `batch` lies on the device, `labels` on the host.
  void forward(const models::Batch& batch, const Tensor& labels);
  // The loss of the forward, on the host, for the caller to give to backward.
  Tensor give_loss();
  bool gave(const Tensor& loss) const;
  // Of the last forward. When it throws, the gradients of the step are of no use any more.
  void backward();
  // Forgets a forward that is open.
  void drop();

  // With graph_harvesting: a whole micro batch as one graph. False where the caller is to run it
  // itself; what is thrown leaves gradients of no use, as with backward.
  struct GraphInputs {
    StepGraphs::Inputs inputs;
    int64_t counted;  // labels
  };
  bool uses_graphs() const { return graphs_ != nullptr; }
  GraphInputs graph_inputs(const models::Batch& batch, const Tensor& labels) const;
  bool run_graph(const GraphInputs& micro_batch);
  void finish_graph(const GraphInputs& micro_batch);

 private:
  struct Pending;  // the tape between forward and backward

  std::unique_ptr<StepGraphs> make_graphs() const;
  uint32_t first_sample(const models::Batch& batch) const;
  // In the open step.
  bool distils() const;
  void follow_teacher(int64_t tokens);
  float loss_gradient() const;
  nn::TapeOptions tape_options(const models::Batch& batch) const;
  std::unique_ptr<nn::KeptInputs> keep_inputs() const;
  nn::Value record_logits(nn::Tape& tape, const models::Batch& batch, nn::RouterRecord* routers);
  // What the model's outputs are compared with; the parts of a distilled loss, else none.
  struct Losses {
    nn::SummedLoss all;
    Tensor labels = {}, teacher = {};
  };
  Losses record_forward(nn::Tape& tape, const models::Batch& batch, const nn::Labels& labels,
                        nn::RouterRecord* routers);
  Losses distil(nn::Tape& tape, const models::Batch& batch, const nn::Labels& labels,
                const nn::Value& logits) const;
  void run_backward(nn::Tape& tape, nn::GradientSlot& slot);
  void count_batch(const Tensor& ids, nn::MeanLoss loss, int64_t counted);
  void warn_of_other_size(int64_t samples);

  RunContext& run_;
  OpenStep& open_;
  StepObserver& observer_;
  const Updater& updater_;
  // Of inputs that checkpointed segments keep: what copies them to the host, or the files that they
  // wait in.
  std::unique_ptr<Stream> offload_stream_;
  std::unique_ptr<StoreRoom> input_files_;
  std::unique_ptr<StepGraphs> graphs_;
  std::unique_ptr<Pending> pending_;
  bool warned_sizes_ = false;
};

}  // namespace ds
