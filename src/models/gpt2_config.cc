// Reads a Hugging Face config.json for GPT-2.
#include "models/config_reader.h"
#include "models/gpt2.h"

namespace ds::models {

Gpt2Config parse_gpt2_config(const Json& config, bool experts) {
  const ConfigReader read(config);
  read.ignore_common();
  read.ignore({"summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout",
               "summary_proj_to_labels", "n_ctx"});
  // Asks for attention that is scaled first and computed in fp32, whatever the weights' type: the
  // kernels here always compute it in fp32.
  static_cast<void>(read.flag("reorder_and_upcast_attn", false));
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
  c.activation = read_activation(read, "activation_function", "gelu_new");
  DS_CHECK(c.width % c.heads == 0, Code::kConfig, "model config: n_embd ", c.width,
           " is not a multiple of n_head ", c.heads);
  DS_CHECK(c.width / c.heads <= 256, Code::kUnsupported, "model config: heads of ",
           c.width / c.heads, " channels are not available; at most 256 are");
  if (experts) c.experts = read_gpt_experts(read, c.layers);
  read.finish();
  return c;
}

}  // namespace ds::models
