// What the engine and the generator ask of a model family: its parameters and its forward pass over
// the tape. Families are built by build_architecture from a Hugging Face config.json.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "nn/kv_cache.h"
#include "nn/loss.h"
#include "nn/parameter.h"
#include "nn/tape.h"

namespace ds::models {

struct Batch {
  Tensor ids;             // int32 [B, T]
  Tensor position_ids;    // int32 [B, T]
  Tensor key_mask;        // uint8 [B, T], 0 = padding, or empty
  Tensor segments;        // int32 [B, T]: tokens see only their own segment; or empty
  Tensor token_types;     // int32 [B, T], or empty for all 0
  int64_t positions = 0;  // position_ids lie below it; 0 = ask them
};

// The batch where a device has it. For a GPU its positions are counted while the host reads them.
Batch to_device(Batch batch, const std::shared_ptr<Device>& device);

// What a model's logits are.
enum class Head {
  kCausalLm,        // [B, T, V], position t predicts token t + 1
  kMaskedLm,        // [B, T, V], position t predicts token t
  kClassification,  // [B, classes]; or numbers, as the loss says
  kNone,            // an encoder: hidden states only
};

// Which blocks run again in backward instead of keeping their activations; by default none.
struct Recompute {
  int64_t segments = 0;  // all of them, in so many groups
  int64_t every = 0;     // instead: every so-many-th block, on its own

  // Whether block `index` does, with `every`.
  bool alone(int64_t index) const { return every > 0 && (index + 1) % every == 0; }
  // Of all blocks.
  double share(int64_t layers) const {
    if (every > 0) return static_cast<double>(layers / every) / static_cast<double>(layers);
    return segments > 0 ? 1 : 0;
  }
};

struct ForwardOptions {
  Recompute recompute = {};
  nn::KvCache* cache = nullptr;  // decoding: the tokens follow those in the cache
  bool last_only = false;        // logits of the last position alone
  // Rows of a language model's logits may be padded (nn::linear_padded): the caller goes by
  // info().outputs().
  bool padded_logits = false;
};

// Dimensions that callers need.
struct ArchitectureInfo {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  int layers = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
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
  // Hidden states after the last norm [B, T, W], or [B, 1, W] with last_only.
  virtual nn::Value hidden(nn::Tape& tape, const Batch& batch,
                           const ForwardOptions& options) const = 0;
  // Logits as info().head says, [B, 1, V] with last_only. Throws kUnsupported without a head.
  virtual nn::Value logits(nn::Tape& tape, const Batch& batch,
                           const ForwardOptions& options) const = 0;

  virtual ExternalName external_name(nn::ParamId id) const = 0;
  // Prefixes that files may add to or leave off every name, such as "transformer.".
  virtual std::string external_prefix() const = 0;
  // Tensors that files may hold but the model does not need (masks stored as buffers, heads that
  // this one leaves out).
  virtual bool ignorable_external(const std::string& name) const = 0;
  // Whether the parameter belongs to a head that may start fresh on a pretrained body.
  virtual bool of_head(nn::ParamId) const { return false; }
};

// Throws kConfig for a bad document, kUnsupported naming an architecture or option unknown here.
std::unique_ptr<Architecture> build_architecture(const Json& config);

}  // namespace ds::models
