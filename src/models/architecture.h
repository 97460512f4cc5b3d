// What the engine and the generator ask of a model family: its parameters and the layers of its
// forward pass. Families are built by build_architecture from a Hugging Face config.json.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "models/pass.h"
#include "nn/loss.h"
#include "nn/parameter.h"
#include "nn/tape.h"

namespace ds::models {

// What a model's logits are.
enum class Head {
  kCausalLm,        // [B, T, V], position t predicts token t + 1
  kMaskedLm,        // [B, T, V], position t predicts token t
  kClassification,  // [B, classes]; or numbers, as the loss says
  kNone,            // an encoder: hidden states only
};

// Dimensions that callers need.
struct ArchitectureInfo {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  int layers = 0;
  // Of what an attention state holds of a token: heads of keys and of values, and their channels.
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  // Latent attention: values are the last so many channels of the keys, of which there is one head.
  int64_t values_in_keys = 0;
  Head head = Head::kCausalLm;
  int64_t classes = 0;  // of a classification head
  nn::LossKind loss = nn::LossKind::kCrossEntropy;
  int64_t token_types = 0;  // kinds of token_types the model knows; 0 = none
  // Positions of a text turn by angles that depend on how long it is.
  bool angles_follow_length = false;
  // Matrix whose product makes the logits of a language model; when it has other names, it is the
  // embedding table too.
  nn::ParamId output = nn::kNoParam;
  // Embedding table whose rows tokens look up and which nothing else reads: a micro batch gives few
  // of its rows a gradient.
  nn::ParamId lookup = nn::kNoParam;

  // Of layers with a mixture of experts: the most that one has, and how many of them a token goes
  // through; 0 where there are none.
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  std::vector<int64_t> expert_layers = {};  // those layers, by index
  // Biases of routers that each step moves towards equal loads of their experts, by `rate`.
  struct RouterBias {
    int64_t layer = 0;
    nn::ParamId router = nn::kNoParam;
    nn::ParamId bias = nn::kNoParam;
    double rate = 0;
  };
  std::vector<RouterBias> router_biases = {};

  // Numbers per row of logits.
  int64_t outputs() const { return head == Head::kClassification ? classes : vocab_size; }
};

// How a parameter is stored in a Hugging Face folder.
struct ExternalName {
  std::string name;
  bool transposed = false;
  std::vector<std::string> also = {};  // other names under which files hold it
};

class Architecture {
 public:
  virtual ~Architecture() = default;
  virtual const nn::ParameterSet& parameters() const = 0;
  virtual const ArchitectureInfo& info() const = 0;
  // The config.json that builds this architecture again.
  virtual const Json& config() const = 0;

  // A pass in parts, each over the tape that it is given: a model may be cut after any block, and
  // passes of several micro batches may be open at once. The same random numbers are drawn and the
  // same operators run however it is cut.
  PassContext begin_pass(const OpContext& ctx, const Batch& batch,
                         const ForwardOptions& options) const;
  ResidualStream embed(nn::Tape& tape, const PassContext& pass) const;
  ResidualStream block(nn::Tape& tape, const PassContext& pass, int64_t index,
                       const ResidualStream& in) const;
  // Those of a range, recomputed where the options say so; then the attention state has seen the
  // tokens of the pass.
  ResidualStream blocks(nn::Tape& tape, const PassContext& pass, BlockRange range,
                        ResidualStream in) const;
  // Hidden states after the last norm [B, T, W], or [B, 1, W] with last_only.
  nn::Value last_norm(nn::Tape& tape, const PassContext& pass, ResidualStream in) const;
  // Logits as info().head says, [B, 1, V] with last_only: the last norm and what follows it. Throws
  // kUnsupported without a head.
  nn::Value head(nn::Tape& tape, const PassContext& pass, ResidualStream in) const;

  // A whole pass: last_norm() or head() after all blocks.
  nn::Value hidden(nn::Tape& tape, const Batch& batch, const ForwardOptions& options) const;
  nn::Value logits(nn::Tape& tape, const Batch& batch, const ForwardOptions& options) const;

  virtual ExternalName external_name(nn::ParamId id) const = 0;
  // Prefixes that files may add to or leave off every name, such as "transformer.".
  virtual std::string external_prefix() const = 0;
  // Tensors that files may hold but the model does not need (masks stored as buffers, heads that
  // this one leaves out).
  virtual bool ignorable_external(const std::string& name) const = 0;
  // Whether the parameter belongs to a head that may start fresh on a pretrained body.
  virtual bool of_head(nn::ParamId) const { return false; }

 private:
  // Cosines and sines of the batch's positions, once for all blocks.
  virtual nn::RotaryTable rotary_table(const OpContext&, const Batch&) const { return {}; }
  virtual ResidualStream run_embedding(nn::Tape& tape, const PassContext& pass) const = 0;
  virtual ResidualStream run_block(nn::Tape& tape, const PassContext& pass, int64_t index,
                                   const ResidualStream& in) const = 0;
  virtual nn::Value run_last_norm(nn::Tape& tape, const ResidualStream& in) const = 0;
  // Of normalised hidden states.
  virtual nn::Value run_head(nn::Tape& tape, const PassContext& pass,
                             const nn::Value& hidden) const = 0;

  BlockRange all_blocks() const { return {0, info().layers}; }
  void check_head() const;
  ResidualStream recomputed(nn::Tape& tape, const PassContext& pass, BlockRange range,
                            const ResidualStream& in) const;
};

// Throws kConfig for a bad document, kUnsupported naming an architecture or option unknown here.
std::unique_ptr<Architecture> build_architecture(const Json& config);

}  // namespace ds::models
