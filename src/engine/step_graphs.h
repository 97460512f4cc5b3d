// Micro batches as CUDA graphs: the work of a forward and backward pass is recorded once for every
// kind of micro batch and then launched as a whole, with the inputs in fixed places.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda_device.h"
#include "models/architecture.h"
#include "nn/loss.h"
#include "zero/train_state.h"

namespace ds {

class StepGraphs {
 public:
  // More kinds than this are not kept: all are given up then, and recorded anew.
  static constexpr size_t kMostKinds = 16;

  explicit StepGraphs(std::shared_ptr<CudaDevice> device);

  // A micro batch on the host. Whatever changes between micro batches of a kind is here, or in
  // memory that the work reads.
  struct Inputs {
    models::Batch batch;
    Tensor labels;
    float loss_scale = 1;                       // the gradient of the summed loss
    std::array<uint32_t, 2> stream_position{};  // step and first sample of random streams
  };
  // The same where recorded work reads it.
  struct Placed {
    models::Batch batch;
    nn::Labels labels;
    Tensor loss_scale;
    const uint32_t* stream_position = nullptr;
    std::vector<Tensor>* constants = nullptr;  // receives what the work reads besides
  };
  // Queues the work of a micro batch and returns its loss, float64 [1] on the device.
  using Pass = std::function<Tensor(const Placed&)>;

  // False where the caller is to run the micro batch itself: a new kind, or recording failed, which
  // ends recording and is logged. Otherwise its work is queued, its gradients are where a backward
  // leaves them, reduced over the ranks, and the loss will be in loss(). Other ranks may do the
  // other: their collectives are the same.
  bool run(const Inputs& inputs, zero::TrainState& state, const Pass& pass);
  const Tensor& loss() const { return loss_; }

 private:
  // What recorded work depends on besides the numbers that it reads.
  struct Kind {
    std::vector<Shape> shapes;  // of inputs; none for one that is missing
    zero::GradientMarks::Snapshot marks;
    std::vector<const void*> memory;  // of weights and gradients
    bool operator==(const Kind&) const = default;
  };
  struct Entry {
    Kind kind;
    Tensor memory;  // of all inputs
    Placed placed;
    std::vector<Tensor> constants;
    zero::GradientRecording::Left left;  // by a launch
    std::unique_ptr<DeviceGraph> graph;  // none before it is recorded
  };
  static Kind kind_of(const Inputs& inputs, const zero::TrainState& state);
  Entry* find(const Kind& kind);
  void place(Entry& entry, const Inputs& inputs) const;
  bool record(Entry& entry, zero::TrainState& state, const Pass& pass);
  void upload(const Entry& entry, const Inputs& inputs) const;
  void launch(const Entry& entry);

  const std::shared_ptr<CudaDevice> device_;
  const Tensor loss_;
  bool failed_ = false;
  std::shared_ptr<GraphMemory> memory_;  // shared: launches follow each other
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace ds
