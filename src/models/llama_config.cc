#include "models/llama_config.h"

#include <algorithm>
#include <optional>

#include "models/config_reader.h"
#include "models/family.h"

namespace ds::models {
namespace {

using enum LlamaKind;

constexpr int64_t kWindowLimit = int64_t{1} << 40;

// Sizes that a family's configuration class has where a key is absent.
struct Sizes {
  int64_t vocab_size = 32000;
  int64_t width = 4096;
  int64_t inner = 11008;
  int64_t layers = 32;
  int64_t heads = 32;
  int64_t kv_heads = 32;  // where the number of heads is absent, too; else that
  int64_t head_size = 0;  // 0: the width's share
};

// What the families say where a key is absent, and what they have at all.
struct Defaults {
  LlamaKind kind;
  int64_t positions;
  double norm_epsilon = 1e-6;
  bool attention_bias = false;  // there is such a key
  HeadNorm head_norm = HeadNorm::kNone;
  std::optional<int64_t> padding = {};
  Sizes sizes = {};
};
constexpr Defaults kDefaults[] = {
    {.kind = kLlama, .positions = 2048, .attention_bias = true},
    {.kind = kMistral, .positions = 131072},
    {.kind = kMixtral,
     .positions = 131072,
     .norm_epsilon = 1e-5,
     .sizes = {.inner = 14336, .kv_heads = 8}},
    {.kind = kQwen2, .positions = 32768},
    {.kind = kQwen2Moe, .positions = 32768, .sizes = {151936, 2048, 5632, 24, 16, 16}},
    {.kind = kQwen3,
     .positions = 32768,
     .attention_bias = true,
     .head_norm = HeadNorm::kEach,
     .sizes = {151936, 4096, 22016, 32, 32, 32, 128}},
    {.kind = kQwen3Moe,
     .positions = 32768,
     .attention_bias = true,
     .head_norm = HeadNorm::kEach,
     .sizes = {151936, 2048, 6144, 24, 32, 4}},
    {.kind = kOlmo2,
     .positions = 2048,
     .norm_epsilon = 1e-5,
     .attention_bias = true,
     .head_norm = HeadNorm::kAll,
     .padding = 1,
     .sizes = {.vocab_size = 50304}},
    {.kind = kOlmoe,
     .positions = 4096,
     .norm_epsilon = 1e-5,
     .attention_bias = true,
     .head_norm = HeadNorm::kAll,
     .padding = 1,
     .sizes = {50304, 2048, 2048, 16, 16, 16}},
};

const Defaults& defaults_of(LlamaKind kind) {
  return *std::find_if(std::begin(kDefaults), std::end(kDefaults),
                       [kind](const Defaults& d) { return d.kind == kind; });
}

// What layer_types says of each layer overrides the families' own rules.
void read_layer_types(const ConfigReader& read, int64_t window, std::vector<int64_t>& windows) {
  const std::vector<std::string> types = read.texts("layer_types");
  if (types.empty()) return;
  DS_CHECK(types.size() == windows.size(), Code::kConfig, read.where(), ": layer_types has ",
           types.size(), " entries for ", windows.size(), " layers");
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == "full_attention") {
      windows[i] = 0;
    } else if (types[i] == "sliding_attention") {
      DS_CHECK(window > 0, Code::kConfig, read.where(),
               ": layer_types asks for sliding_attention, but there is no sliding_window");
      windows[i] = window;
    } else {
      fail(Code::kUnsupported, read.where(), ": layer type ", printable(types[i]),
           " is not available; full_attention and sliding_attention are");
    }
  }
}

// Which layers see only a window, by the rules of each family.
std::vector<int64_t> read_windows(const ConfigReader& read, LlamaKind kind, int64_t layers) {
  std::vector<int64_t> windows(static_cast<size_t>(layers), 0);
  if (kind == kLlama || kind == kOlmo2 || kind == kOlmoe) return windows;
  // Absent means the family's default, null means none.
  const bool of_qwen = kind != kMistral && kind != kMixtral;
  const int64_t absent = kind == kMixtral || read.is_null("sliding_window") ? 0 : 4096;
  int64_t window = read.count("sliding_window", absent, kWindowLimit, of_qwen ? 0 : 1);
  if (of_qwen && !read.flag("use_sliding_window", false)) window = 0;
  int64_t begin = 0, end = layers;
  if (kind == kQwen2 || kind == kQwen3)
    begin = read.count("max_window_layers", 28, kWindowLimit, 0);
  if (kind == kQwen2Moe) end = read.count("max_window_layers", 28, kWindowLimit, 0);
  if (kind == kQwen3Moe) read.ignore({"max_window_layers"});
  for (int64_t i = begin; i < std::min(end, layers); ++i) {
    // Qwen2-MoE: every second layer of the first ones.
    if (kind != kQwen2Moe || i % 2 == 0) windows[static_cast<size_t>(i)] = window;
  }
  read_layer_types(read, window, windows);
  return windows;
}

// Layers that the configuration leaves without experts, or that lie between those that have them.
std::vector<bool> read_expert_layers(const ConfigReader& read, int64_t layers) {
  const int64_t step = read.count("decoder_sparse_step", 1, 10000);
  std::vector<bool> out;
  for (int64_t i = 0; i < layers; ++i) out.push_back((i + 1) % step == 0);
  for (const int64_t dense : read.counts("mlp_only_layers", 10000)) {
    if (dense < layers) out[static_cast<size_t>(dense)] = false;
  }
  return out;
}

ExpertsConfig read_experts(const ConfigReader& read, LlamaKind kind, int64_t layers,
                           int64_t inner) {
  constexpr int64_t kMost = 1 << 16;
  ExpertsConfig c;
  c.inner = inner;
  c.layers.assign(static_cast<size_t>(layers), true);
  if (kind == kMixtral) {
    c.count = read.count("num_local_experts", 8, kMost);
    c.choices = read.count("num_experts_per_tok", 2, c.count);
    c.normalise = true;
    c.jitter = read.number("router_jitter_noise", 0, 0, 1);
  } else {
    const int64_t count = kind == kQwen2Moe ? 60 : kind == kQwen3Moe ? 128 : 64;
    const int64_t choices = kind == kQwen2Moe ? 4 : 8;
    // Newer files of Qwen3-MoE have the second name.
    c.count = read.count("num_experts", read.count("num_local_experts", count, kMost, 0), kMost, 0);
    c.choices = read.count("num_experts_per_tok", choices, std::max<int64_t>(1, c.count));
    c.normalise = read.flag("norm_topk_prob", false);
  }
  if (kind == kQwen2Moe || kind == kQwen3Moe) {
    c.layers = read_expert_layers(read, layers);
    c.inner = read.count("moe_intermediate_size", kind == kQwen2Moe ? 1408 : 768, int64_t{1} << 22);
  }
  if (kind == kQwen2Moe) {
    c.shared_inner = read.count("shared_expert_intermediate_size", 5632, int64_t{1} << 22);
  }
  const double balance = read.number("router_aux_loss_coef", kind == kOlmoe ? 0.01 : 0.001, 0, 1e3);
  if (read.flag("output_router_logits", false)) c.balance = balance;
  if (c.count == 0) c.layers.assign(static_cast<size_t>(layers), false);
  read.check_experts(kind == kMixtral ? "num_local_experts" : "num_experts", c.count * layers);
  return c;
}

// Biases, norms and other options that some families have.
void read_family(const ConfigReader& read, LlamaConfig& c) {
  const Defaults& family = defaults_of(c.kind);
  if (family.attention_bias) c.qkv_bias = c.out_bias = read.flag("attention_bias", false);
  if (c.kind == kLlama) {
    c.mlp_bias = read.flag("mlp_bias", false);
    read.ignore({"pretraining_tp", "max_sequence_length"});
  }
  if (c.kind == kQwen2 || c.kind == kQwen2Moe) {
    c.qkv_bias = c.kind == kQwen2 || read.flag("qkv_bias", true);
    read.require("use_mrope", false);
  }
  if (c.kind == kOlmoe) {
    DS_CHECK(!read.has("clip_qkv"), Code::kUnsupported, read.where(),
             ": clip_qkv is not available; null is");
  }
  c.norms_after = c.kind == kOlmo2;
  if (c.kind == kMixtral || c.kind == kQwen2Moe || c.kind == kQwen3Moe || c.kind == kOlmoe) {
    c.experts = read_experts(read, c.kind, c.layers, c.inner);
  }
}

}  // namespace

LlamaConfig parse_llama(const Json& config, LlamaKind kind) {
  const ConfigReader read(config);
  read.ignore_common();
  const Defaults& family = defaults_of(kind);
  LlamaConfig c;
  c.kind = kind;
  const Sizes& sizes = family.sizes;
  c.vocab_size = read.count("vocab_size", sizes.vocab_size, int64_t{1} << 30);
  c.width = read.count("hidden_size", sizes.width, int64_t{1} << 20);
  c.inner = read.count("intermediate_size", sizes.inner, int64_t{1} << 22);
  c.layers = read.count("num_hidden_layers", sizes.layers, 10000);
  c.heads = read.count("num_attention_heads", sizes.heads, int64_t{1} << 16);
  c.kv_heads =
      read.count("num_key_value_heads", read.has("num_attention_heads") ? c.heads : sizes.kv_heads,
                 int64_t{1} << 16);
  DS_CHECK(read.has("head_dim") || c.width % c.heads == 0, Code::kConfig, read.where(),
           ": hidden_size ", c.width, " is not a multiple of num_attention_heads ", c.heads);
  const int64_t share = std::max<int64_t>(c.width / c.heads, 1);
  c.head_size = read.count("head_dim", sizes.head_size > 0 ? sizes.head_size : share, 1 << 16);
  check_heads(read, c.heads, c.kv_heads, c.head_size);
  c.positions = read.count("max_position_embeddings", family.positions, int64_t{1} << 24);
  c.activation = read_activation(read, "hidden_act", "silu");
  c.norm_epsilon = read.number("rms_norm_eps", family.norm_epsilon, 0, 1);
  c.initializer_range = read.number("initializer_range", c.initializer_range, 0, 1e3);
  c.attention_dropout = read.number("attention_dropout", 0, 0, 1);
  c.tied = read.flag("tie_word_embeddings", false);
  c.padding = read.padding_row(c.vocab_size, family.padding);
  c.head_norm = family.head_norm;
  c.windows = read_windows(read, kind, c.layers);
  read_family(read, c);
  RotaryDefaults rotary;
  rotary.partial_allowed = false;
  if (kind == kMixtral) rotary.theta = 1e6;
  c.rotary = read_rotary(read, c.head_size, c.positions, rotary);
  read.finish();
  return c;
}

}  // namespace ds::models
