// A model as users hold it: an architecture, its weights, whoever holds them, and what runs it when
// no engine does.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "models/architecture.h"
#include "models/inference_weights.h"
#include "models/lora.h"
#include "models/pass_ranks.h"
#include "nn/held_weights.h"

namespace ds::models {

class Model {
 public:
  // All weights zero. Weights do not exist before somebody needs them: an engine of several ranks
  // makes only what each of them holds.
  explicit Model(const Json& config);
  // Fresh weights; same seed, same bits, whatever the threads.
  static std::shared_ptr<Model> create(const Json& config, uint64_t seed);

  // The caller's own parameters, all zero, without a forward pass: the caller computes gradients.
  static std::shared_ptr<Model> from_parameters(nn::ParameterSet parameters);

  bool has_architecture() const { return architecture_ != nullptr; }
  // Throws kUnsupported when the model is the caller's own parameters.
  const Architecture& architecture() const;
  const nn::ParameterSet& parameters() const { return *parameters_; }
  // The weights as a forward pass without training sees them, made if they do not exist yet.
  nn::ParameterReader& reader();
  // As programs and files see them, which the model holds, or the engine that trains it. Throws
  // kState for a prepared copy.
  nn::ModelWeights& weights();
  // Those that the model itself holds. While an engine trains the model, and for a prepared copy,
  // throws kState with a text that begins with `what`.
  nn::HeldWeights& held_weights(const char* what);
  // Weights come from there from now on; no engine may hold the model.
  void set_weight_loader(std::shared_ptr<const nn::WeightLoader> source);
  // Where the weights lie and operators run, and the CPU for everything that the host reads; on the
  // CPU both are one.
  const std::shared_ptr<Device>& device() const { return device_; }
  const std::shared_ptr<Device>& host() const { return host_; }
  // Moves the weights. kState while an engine is attached and for a prepared copy; kUnsupported for
  // the caller's own parameters, whose memory the caller shares.
  void set_device(std::shared_ptr<Device> device);
  // To run operators without an engine; the threads start with the first use.
  OpContext context();
  OpContext host_context();

  // A second model that holds these weights in one form, without masters, and has threads of its
  // own: it runs, but neither trains nor changes. Weights that nobody needed yet are read one after
  // another. Every rank's call where the weights are spread over ranks.
  // `mesh`: the copy has this rank's experts alone and goes with those of the others, whose experts
  // are not read; null: it has all. The weights must not be spread over ranks then.
  std::shared_ptr<Model> prepared_copy(const InferenceOptions& options, const Mesh* mesh = nullptr);
  bool prepared() const { return inference_ != nullptr; }
  InferenceReport inference_report() const;  // of a prepared copy

  // Of a model whose weights are spread over ranks, every rank makes the calls that read or write
  // whole weights, and the first rank alone writes files.
  bool writes_files() const;
  // Whom a pass outside the engine involves, while one trains the model.
  const PassRanks& pass_ranks() const { return pass_ranks_; }
  void set_pass_ranks(PassRanks ranks) { pass_ranks_ = std::move(ranks); }

  // fp32 values: the master, or what products see of a prepared copy. Weights that do not exist yet
  // are not made for it. Whole, or in parts as ModelWeights hands them out.
  Tensor read(const OpContext& ctx, nn::ParamId id);
  void read_in_parts(const OpContext& ctx, nn::ParamId id, const nn::ModelWeights::PartTaker& take);
  // Copies of whole master tensors, in host memory.
  Tensor get(const std::string& name);
  void set(const std::string& name, const Tensor& value);

  // A second model of the same fp32 weights, adapters and frozen parameters, on the same device,
  // which shares nothing with this one. Every rank's call where the weights are spread over ranks.
  std::shared_ptr<Model> copy();

  // Exchanges the parameters for a set that begins with the same ones, which carries these
  // adapters. Values stay, and those of further parameters come from `rest`, or are zero.
  void change_parameters(nn::ParameterSet parameters, std::optional<AppliedLora> lora,
                         std::shared_ptr<const nn::WeightLoader> rest = nullptr);
  const std::optional<AppliedLora>& lora() const { return lora_; }

  // The folder that the weights came from, which adapters name as their base.
  void set_origin(std::string folder) { origin_ = std::move(folder); }
  const std::string& origin() const { return origin_; }

  // An engine trains the model from now on: its State, made of the weights that the model held, in
  // the same memory, is what the model refers to. Throws kState when another one does.
  template <class State>
  std::shared_ptr<State> attach_engine() {
    const nn::WholeWeights& whole =
        held_weights(has_engine_ ? "another engine cannot begin" : "training cannot begin")
            .whole_weights();
    auto state = std::make_shared<State>(*parameters_, device_, whole);
    held_.reset();
    trained_ = state;
    has_engine_ = true;
    return state;
  }
  // The model holds its weights again. When that throws, as it may need memory, the model goes on
  // with the engine's State.
  void detach_engine(const OpContext& ctx);
  // Between forward and the update the weights may not change.
  void set_step_open(bool open) { step_open_ = open; }

  // While a load writes over the weights, and after one that failed half way: they are of two
  // kinds, and nobody but another load may have them. `why` tells the others; empty: all is well.
  void set_incomplete(std::string why) { incomplete_ = std::move(why); }
  const std::string& incomplete() const { return incomplete_; }

  // Orders every use of the model with a stream of the program on its GPU (a cudaStream_t), both
  // ways: the host does not wait for that. Null: uses end when the GPU has finished.
  void set_caller_stream(void* native);
  bool has_caller_stream() const { return caller_stream_ != nullptr; }
  // A program works with its own parameters and gradients on streams of its own: when a call of it
  // ends, nothing of ours is left to wait for.
  void synchronize_stream() noexcept;

  // Entry ticket for whoever uses weights: one user at a time, others get kState, and everybody but
  // a load while they are incomplete.
  class Use {
   public:
    enum class Purpose { kAny, kLoad };
    explicit Use(Model& model, Purpose purpose = Purpose::kAny);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Model& model_;
  };

 private:
  explicit Model(std::unique_ptr<Architecture> architecture);
  explicit Model(nn::ParameterSet parameters);

  void hand_over() noexcept;
  // Another model of the same architecture and parameters, without weights yet.
  std::shared_ptr<Model> alike() const;

  std::string origin_;
  std::unique_ptr<Architecture> architecture_;
  std::unique_ptr<nn::ParameterSet> parameters_;  // weights refer to it
  std::shared_ptr<Device> host_, device_;
  std::unique_ptr<Stream> caller_stream_;  // of device_
  // One of these three.
  std::unique_ptr<nn::HeldWeights> held_;
  std::shared_ptr<nn::ModelWeights> trained_;
  std::unique_ptr<InferenceWeights> inference_;  // in a prepared copy
  std::unique_ptr<ThreadPool> pool_;
  std::optional<AppliedLora> lora_;
  std::atomic<bool> in_use_{false};
  std::string incomplete_;
  PassRanks pass_ranks_;
  bool has_engine_ = false;
  bool step_open_ = false;
};

}  // namespace ds::models
