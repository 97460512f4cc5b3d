// The autograd tape: records, per operator, how to turn the gradients of its outputs into those of
// its inputs. It holds parameter ids and the activations that backward needs, never parameters.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "nn/gradient_sink.h"
#include "nn/parameter_reader.h"
#include "observe/module_profile.h"
#include "ops/context.h"

namespace ds::nn {

class KeptInputs;
class Tape;

// Where the gradient of one value gathers during backward.
class GradientSlot {
 public:
  // Adds a contribution. `exclusive`: nobody else reads `gradient`, so it may be added to in place.
  void add(const OpContext& ctx, Tensor gradient, bool exclusive);
  const Tensor& gradient() const { return gradient_; }
  explicit operator bool() const { return static_cast<bool>(gradient_); }
  // Gives the gradient away; `exclusive` tells whether the taker may overwrite it.
  Tensor take(bool& exclusive);

  // Where an operator that makes this gradient should write it: a part of a larger gradient, so
  // that values cut from one tensor need no copy. Without a place a new tensor is made.
  using Place = std::function<Tensor(Tape&)>;
  void set_place(Place place) { place_ = std::move(place); }
  const Place& place() const { return place_; }
  Tensor make(Tape& tape, DType dtype, const Shape& shape) const;

 private:
  Tensor gradient_;
  bool exclusive_ = false;
  Place place_;
};

// An activation: data, and a slot when a gradient flows through it. Copies share both, and data
// live as long as the model's code or a recorded operator holds them.
struct Value {
  Tensor data;
  std::shared_ptr<GradientSlot> slot;
  explicit operator bool() const { return static_cast<bool>(data); }
};

// Layer numbers of random streams: a block's is its index in the whole model, and these are of what
// stands around the blocks.
inline constexpr uint32_t kEmbeddingLayer = RandomStream::kLayers - 1;
inline constexpr uint32_t kHeadLayer = RandomStream::kLayers - 2;
inline constexpr uint32_t kNoLayer = RandomStream::kLayers - 3;  // outside any LayerScope

struct TapeOptions {
  bool record = true;    // keep what backward needs
  bool training = true;  // dropout is active
  uint64_t seed = 0;
  uint32_t step = 0;          // optimizer step, the second coordinate of every random stream
  uint32_t first_sample = 0;  // of the batch, counted over all ranks and micro batches of the step
  float loss_gradient = 1;  // what backward will start with: lets the loss make its gradient early
  ModuleProfile* profile = nullptr;  // that operators report to; see nn/profile.h
  // For work on a GPU that is recorded and runs again: where the step and the first sample, and
  // what the loss multiplies its gradient by, fp32 [1], then lie in its memory; and what the work
  // reads besides parameters and inputs of the pass, which must not go.
  const uint32_t* step_memory = nullptr;
  Tensor loss_scale = {};
  std::vector<Tensor>* constants = nullptr;
  // Where inputs of checkpointed segments wait; of this pass alone, and outlives the tape. Null:
  // they stay where they are.
  KeptInputs* kept_inputs = nullptr;
};

class Tape {
 public:
  // `gradients` may be null where no backward follows.
  Tape(const OpContext& ctx, ParameterReader& weights, GradientSink* gradients,
       const TapeOptions& options)
      : ctx_(ctx), weights_(weights), gradients_(gradients), options_(options) {
    ctx_.any_order = !options.record && !options.training;
  }

  const OpContext& ctx() const { return ctx_; }
  ParameterReader& weights() { return weights_; }
  GradientSink& gradients() {
    DS_CHECK(gradients_ != nullptr, Code::kInternal, "backward without a sink of gradients");
    return *gradients_;
  }
  bool recording() const { return options_.record; }
  bool training() const { return options_.training; }
  float loss_gradient() const { return options_.loss_gradient; }
  const Tensor& loss_scale() const { return options_.loss_scale; }
  ModuleProfile* profile() const { return options_.profile; }

  // The random stream of the next operator of the layer that draws numbers.
  RandomStream next_stream();
  // Operators that read memory which belongs to somebody else tell so.
  void reads(const Tensor& constant) const {
    if (options_.constants != nullptr) options_.constants->push_back(constant);
  }

  Tensor new_activation(DType dtype, const Shape& shape) const {
    return Tensor::empty(ctx_.device, dtype, shape, MemoryTag::kActivations);
  }
  // Wraps an operator's output; it gets a slot while recording.
  Value make_value(Tensor data) const;

  // Backward of one operator: reads the slots of its outputs, fills those of its inputs.
  using Backward = std::function<void(Tape&)>;
  void record(Backward backward) {
    if (!options_.record) return;
    nodes_.push_back(options_.profile == nullptr ? std::move(backward)
                                                 : profiled(std::move(backward)));
  }

  // Notes that an operator of the forward pass used `id`; backward must call used_backward as
  // often.
  void used(ParamId id);
  void used_backward(ParamId id);
  // No other operator whose backward has not run yet used it.
  bool last_use(ParamId id) const { return pending_uses_.at(static_cast<size_t>(id)) == 1; }

  // Runs the operators recorded since `mark`, newest first. Data are freed as they are used up.
  void backward(size_t mark = 0);
  size_t mark() const { return nodes_.size(); }

  // Activation checkpointing (Chen et al., arXiv:1604.06174): runs `body` without recording, keeps
  // only its inputs, and runs it again in backward. Random streams are replayed, so gradients are
  // the same bits as without.
  using Body = std::function<std::vector<Value>(Tape&, std::span<const Value>)>;
  std::vector<Value> checkpoint(std::span<const Value> inputs, const Body& body);

 private:
  class Recompute;
  friend class LayerScope;
  friend class OperatorScope;

  // What the next random stream will be counted as.
  struct StreamPlace {
    uint32_t layer = kNoLayer;
    uint32_t op = 0;  // in the layer
  };

  // The operator that is running, for the profile.
  struct ProfileState {
    std::string module;  // of the last operator with parameters
    ModuleProfile::Site site = 0;
    Arithmetic backward;
    bool open = false;
  };
  // Reports the time and work of an operator's backward.
  Backward profiled(Backward backward);
  ProfilePhase profile_phase() const {
    return recomputing_ ? ProfilePhase::kRecompute : ProfilePhase::kForward;
  }

  OpContext ctx_;
  ParameterReader& weights_;
  GradientSink* const gradients_;
  TapeOptions options_;
  std::vector<Backward> nodes_;
  std::vector<int32_t> pending_uses_;
  StreamPlace next_stream_;
  bool recomputing_ = false;
  bool checkpointing_ = false;  // inside a checkpointed body that is not recorded
  ProfileState profile_state_;
};

// The operators of a scope belong to one layer, and count their random streams from its first on. A
// pass enters each layer once: entered again, as recomputation does, it draws the same numbers.
class LayerScope {
 public:
  LayerScope(Tape& tape, uint32_t layer)
      : tape_(tape), outer_(std::exchange(tape.next_stream_, {layer, 0})) {}
  ~LayerScope() { tape_.next_stream_ = outer_; }
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  Tape& tape_;
  const Tape::StreamPlace outer_;
};

}  // namespace ds::nn
