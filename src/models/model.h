// A model as users hold it: an architecture, the bytes of its weights, and what runs it when no
// engine does.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "models/architecture.h"
#include "models/inference_weights.h"
#include "models/lora.h"
#include "models/weight_loaders.h"
#include "zero/train_state.h"

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
  // The weights as training and files see them; throws kState for a prepared copy.
  zero::TrainState& state();
  // The same without making weights that do not exist yet.
  zero::TrainState& state_as_it_is();
  // Weights come from there from now on; no engine may hold the model.
  void set_weight_loader(std::shared_ptr<const zero::WeightLoader> source);
  // The weights as a forward pass without training sees them.
  nn::ParameterReader& weights();
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
  std::shared_ptr<Model> prepared_copy(const InferenceOptions& options);
  bool prepared() const { return inference_ != nullptr; }
  InferenceReport inference_report() const;  // of a prepared copy

  // Of a model whose weights are spread over ranks, every rank makes the calls that read or write
  // whole weights, and the first rank alone writes files.
  bool writes_files() const;

  // fp32 values: the master, or what products see of a prepared copy.
  Tensor read(const OpContext& ctx, nn::ParamId id);
  // Copies of whole master tensors, in host memory.
  Tensor get(const std::string& name);
  void set(const std::string& name, const Tensor& value);

  // A second model of the same fp32 weights, adapters and frozen parameters, on the same device,
  // which shares nothing with this one. Every rank's call where the weights are spread over ranks.
  std::shared_ptr<Model> copy();

  // Freezes or releases the parameters whose name (the model's, an alias or the one in files)
  // matches a pattern with '*' and '?'; returns how many. kNotFound when a pattern matches none,
  // kState while an engine is attached, as for the adapters below.
  int64_t set_trainable(const std::vector<std::string>& patterns, bool trainable);

  // The folder that the weights came from, which adapters name as their base.
  void set_origin(std::string folder) { origin_ = std::move(folder); }
  // Freezes every parameter and puts low-rank adapters beside the chosen weights; they are
  // parameters MODULE.lora_A.weight and MODULE.lora_B.weight at the end of the set.
  void add_lora(const LoraOptions& options);
  // Adds the adapters to their weights and removes them, or removes them alone; what trained
  // before add_lora trains again.
  void merge_lora();
  void remove_lora();
  const std::optional<LoraOptions>& lora() const { return lora_; }
  // Name in Hugging Face folders of the module that a weight belongs to.
  std::string module_name(nn::ParamId weight) const;

  // Marks the model as trained by an engine; throws kState when another one does.
  void attach_engine();
  void detach_engine();
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

  void check_free(const char* what) const;
  void hand_over() noexcept;
  // Another model of the same architecture and parameters, without weights yet.
  std::shared_ptr<Model> alike() const;
  // Exchanges the parameters for a set that begins with the same ones; values stay, and those of
  // further parameters come from `rest`.
  void rebuild(nn::ParameterSet parameters,
               std::shared_ptr<const zero::WeightLoader> rest = nullptr);

  std::string origin_;
  std::unique_ptr<Architecture> architecture_;
  std::unique_ptr<nn::ParameterSet> parameters_;  // state_ refers to it
  std::shared_ptr<Device> host_, device_;
  std::unique_ptr<Stream> caller_stream_;    // of device_
  std::unique_ptr<zero::TrainState> state_;  // null in a prepared copy
  std::unique_ptr<InferenceWeights> inference_;
  std::unique_ptr<ThreadPool> pool_;
  std::optional<LoraOptions> lora_;
  std::vector<bool> trained_before_lora_;
  std::atomic<bool> in_use_{false};
  std::string incomplete_;
  bool has_engine_ = false;
  bool step_open_ = false;
};

}  // namespace ds::models
