// Reads a Hugging Face config.json for GPT-2: every key is understood, known to be harmless, or
// refused by name.
#include <algorithm>
#include <array>
#include <cmath>

#include "models/gpt2.h"

namespace ds::models {
namespace {

// Keys that do not change what the network computes here.
constexpr std::array kHarmless = {
    "_name_or_path",
    "architectures",
    "model_type",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "use_cache",
    "task_specific_params",
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "n_ctx",
    "gradient_checkpointing",
    "output_past",
    "id2label",
    "label2id",
    "is_decoder",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "chunk_size_feed_forward",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "finetuning_task",
    "tokenizer_class",
    "problem_type",
    "name_or_path",
};
// Keys whose other values would change the mathematics.
struct Required {
  const char* key;
  bool value;
};
constexpr std::array kRequired = {Required{"add_cross_attention", false},
                                  Required{"reorder_and_upcast_attn", false},
                                  Required{"is_encoder_decoder", false}};

class Reader {
 public:
  explicit Reader(const Json& config) : config_(config) {}

  int64_t count(const char* key, int64_t fallback, int64_t limit) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    DS_CHECK(value->is_number_integer() && *value >= 1 && *value <= limit, Code::kConfig,
             "model config: ", key, " must be an integer from 1 to ", limit, ", not ",
             printable(dump_json(*value)));
    return value->get<int64_t>();
  }
  double number(const char* key, double fallback, double low, double high) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    DS_CHECK(value->is_number(), Code::kConfig, "model config: ", key, " must be a number, not ",
             printable(dump_json(*value)));
    const double x = value->get<double>();
    DS_CHECK(std::isfinite(x) && x >= low && x < high, Code::kConfig, "model config: ", key,
             " must be in [", low, ", ", high, "), not ", format_number(x));
    return x;
  }
  bool flag(const char* key, bool fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    DS_CHECK(value->is_boolean(), Code::kConfig, "model config: ", key,
             " must be true or false, not ", printable(dump_json(*value)));
    return value->get<bool>();
  }
  std::string text(const char* key, const char* fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    DS_CHECK(value->is_string(), Code::kConfig, "model config: ", key, " must be a string, not ",
             printable(dump_json(*value)));
    return value->get<std::string>();
  }
  // Refuses keys that nobody asked for and that are not known to be harmless.
  void finish() const {
    std::vector<std::string> known(kHarmless.begin(), kHarmless.end());
    known.insert(known.end(), asked_.begin(), asked_.end());
    for (const auto& [key, value] : config_.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      const std::string nearest = nearest_name(key, known);
      fail(Code::kUnsupported, "model config: unknown option ", printable(key),
           nearest.empty() ? "" : "; did you mean " + nearest + "?");
    }
  }

 private:
  const Json* find(const char* key) const {
    asked_.emplace_back(key);
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }

  const Json& config_;
  mutable std::vector<std::string> asked_;
};

}  // namespace

Gpt2Config parse_gpt2_config(const Json& config) {
  const Reader read(config);
  Gpt2Config c;
  c.vocab_size = read.count("vocab_size", c.vocab_size, int64_t{1} << 30);
  c.positions = read.count("n_positions", c.positions, int64_t{1} << 24);
  c.width = read.count("n_embd", c.width, int64_t{1} << 20);
  c.layers = read.count("n_layer", c.layers, 10000);
  c.heads = read.count("n_head", c.heads, int64_t{1} << 16);
  c.inner = read.count("n_inner", 4 * c.width, int64_t{1} << 22);
  c.residual_dropout = read.number("resid_pdrop", c.residual_dropout, 0, 1);
  c.embedding_dropout = read.number("embd_pdrop", c.embedding_dropout, 0, 1);
  c.attention_dropout = read.number("attn_pdrop", c.attention_dropout, 0, 1);
  c.norm_epsilon = read.number("layer_norm_epsilon", c.norm_epsilon, 0, 1);
  c.initializer_range = read.number("initializer_range", c.initializer_range, 0, 1e3);
  c.scale_attention = read.flag("scale_attn_weights", c.scale_attention);
  c.scale_by_layer = read.flag("scale_attn_by_inverse_layer_idx", c.scale_by_layer);
  c.tied = read.flag("tie_word_embeddings", c.tied);
  const std::string activation = read.text("activation_function", "gelu_new");
  if (activation == "gelu") {
    c.gelu = ops::Gelu::kErf;
  } else {
    DS_CHECK(activation == "gelu_new" || activation == "gelu_pytorch_tanh", Code::kUnsupported,
             "model config: activation_function ", printable(activation),
             " is not available; gelu_new, gelu_pytorch_tanh and gelu are");
  }
  for (const Required& required : kRequired) {
    DS_CHECK(read.flag(required.key, required.value) == required.value, Code::kUnsupported,
             "model config: ", required.key, " is not available");
  }
  DS_CHECK(c.width % c.heads == 0, Code::kConfig, "model config: n_embd ", c.width,
           " is not a multiple of n_head ", c.heads);
  DS_CHECK(c.width / c.heads <= 256, Code::kUnsupported, "model config: heads of ",
           c.width / c.heads, " channels are not available; at most 256 are");
  read.finish();
  return c;
}

}  // namespace ds::models
