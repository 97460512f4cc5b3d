#include "models/llama.h"

#include <algorithm>
#include <cmath>

#include "models/family.h"
#include "models/rotary_scaling.h"

namespace ds::models {
namespace {

using nn::ParamId;
using nn::Tape;
using nn::Value;

enum class Kind { kLlama, kMistral, kQwen2 };

struct LlamaConfig {
  int64_t vocab_size = 32000;
  int64_t width = 4096;
  int64_t inner = 11008;
  int64_t layers = 32;
  int64_t heads = 32;
  int64_t kv_heads = 32;
  int64_t head_size = 128;
  int64_t positions = 2048;
  ops::Activation activation = ops::Activation::kSilu;
  double norm_epsilon = 1e-6;
  double initializer_range = 0.02;
  double attention_dropout = 0;
  bool qkv_bias = false;
  bool out_bias = false;
  bool mlp_bias = false;
  bool tied = false;
  int64_t padding = -1;          // row of the embedding without a gradient, -1 = none
  std::vector<int64_t> windows;  // by layer, 0 = none
  RotaryConfig rotary;
};

// Which layers see only a window, by the rules of each family.
std::vector<int64_t> read_windows(const ConfigReader& read, Kind kind, int64_t layers) {
  constexpr int64_t kLimit = int64_t{1} << 40;
  std::vector<int64_t> windows(static_cast<size_t>(layers), 0);
  int64_t window = 0, first = 0;
  if (kind == Kind::kMistral) {
    // Absent means the family's default, null means none.
    window = read.count("sliding_window", read.is_null("sliding_window") ? 0 : 4096, kLimit);
  } else if (kind == Kind::kQwen2) {
    window = read.count("sliding_window", read.is_null("sliding_window") ? 0 : 4096, kLimit);
    first = read.count("max_window_layers", 28, kLimit, 0);
    if (!read.flag("use_sliding_window", false)) window = 0;
  }
  for (int64_t i = first; i < layers; ++i) windows[static_cast<size_t>(i)] = window;
  if (kind == Kind::kLlama) return windows;
  const std::vector<std::string> types = read.texts("layer_types");
  if (types.empty()) return windows;
  DS_CHECK(types.size() == static_cast<size_t>(layers), Code::kConfig, read.where(),
           ": layer_types has ", types.size(), " entries for ", layers, " layers");
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
  return windows;
}

LlamaConfig parse(const Json& config, Kind kind) {
  const ConfigReader read(config);
  read.ignore_common();
  LlamaConfig c;
  c.vocab_size = read.count("vocab_size", c.vocab_size, int64_t{1} << 30);
  c.width = read.count("hidden_size", c.width, int64_t{1} << 20);
  c.inner = read.count("intermediate_size", c.inner, int64_t{1} << 22);
  c.layers = read.count("num_hidden_layers", c.layers, 10000);
  c.heads = read.count("num_attention_heads", c.heads, int64_t{1} << 16);
  c.kv_heads = read.count("num_key_value_heads", c.heads, int64_t{1} << 16);
  DS_CHECK(read.has("head_dim") || c.width % c.heads == 0, Code::kConfig, read.where(),
           ": hidden_size ", c.width, " is not a multiple of num_attention_heads ", c.heads);
  c.head_size = read.count("head_dim", std::max<int64_t>(c.width / c.heads, 1), 1 << 16);
  check_heads(read, c.heads, c.kv_heads, c.head_size);
  const int64_t positions = kind == Kind::kLlama ? 2048 : kind == Kind::kMistral ? 131072 : 32768;
  c.positions = read.count("max_position_embeddings", positions, int64_t{1} << 24);
  c.activation = read_activation(read, "hidden_act", "silu");
  c.norm_epsilon = read.number("rms_norm_eps", c.norm_epsilon, 0, 1);
  c.initializer_range = read.number("initializer_range", c.initializer_range, 0, 1e3);
  c.attention_dropout = read.number("attention_dropout", 0, 0, 1);
  c.tied = read.flag("tie_word_embeddings", false);
  c.padding = read.padding_row(c.vocab_size);
  if (kind == Kind::kLlama) {
    c.qkv_bias = c.out_bias = read.flag("attention_bias", false);
    c.mlp_bias = read.flag("mlp_bias", false);
    read.ignore({"pretraining_tp", "max_sequence_length"});
  }
  if (kind == Kind::kQwen2) {
    c.qkv_bias = true;
    read.require("use_mrope", false);
  }
  c.windows = read_windows(read, kind, c.layers);
  RotaryDefaults rotary;
  rotary.partial_allowed = false;
  c.rotary = read_rotary(read, c.head_size, c.positions, rotary);
  read.finish();
  return c;
}

class Llama : public FamilyBase {
 public:
  Llama(const Json& config, Kind kind, const char* model_type, const char* architecture)
      : FamilyBase(config, model_type, architecture), c_(parse(config, kind)), tables_(c_.rotary) {
    // What defaults decided is written out, so that every reader sees the same model.
    config_["num_key_value_heads"] = c_.kv_heads;
    config_["head_dim"] = c_.head_size;
    config_["max_position_embeddings"] = c_.positions;
    config_["tie_word_embeddings"] = c_.tied;
    const double std = c_.initializer_range;
    const int64_t w = c_.width, q = c_.heads * c_.head_size, kv = c_.kv_heads * c_.head_size;
    embedding_ =
        matrix("embed_tokens.weight", c_.vocab_size, w, std,
               c_.tied ? std::vector<std::string>{"lm_head.weight"} : std::vector<std::string>(),
               SplitRule::vocabulary());
    const SplitRule::Section queries = {c_.heads, c_.head_size};
    const SplitRule by_query = SplitRule::head_rows({queries});
    const SplitRule by_key = SplitRule::head_rows({{c_.kv_heads, c_.head_size, true}});
    for (int64_t i = 0; i < c_.layers; ++i) {
      const std::string p = "layers." + std::to_string(i) + ".";
      Block b;
      b.norm1 = vector(p + "input_layernorm.weight", w, nn::Init::kOnes);
      b.q = projection(p + "self_attn.q_proj", q, w, std, c_.qkv_bias, by_query);
      b.k = projection(p + "self_attn.k_proj", kv, w, std, c_.qkv_bias, by_key);
      b.v = projection(p + "self_attn.v_proj", kv, w, std, c_.qkv_bias, by_key);
      b.out = projection(p + "self_attn.o_proj", w, q, std, c_.out_bias,
                         SplitRule::head_columns({queries}));
      b.norm2 = vector(p + "post_attention_layernorm.weight", w, nn::Init::kOnes);
      b.gate = projection(p + "mlp.gate_proj", c_.inner, w, std, c_.mlp_bias, SplitRule::rows());
      b.up = projection(p + "mlp.up_proj", c_.inner, w, std, c_.mlp_bias, SplitRule::rows());
      b.down = projection(p + "mlp.down_proj", w, c_.inner, std, c_.mlp_bias, SplitRule::columns());
      blocks_.push_back(b);
    }
    norm_ = vector("norm.weight", w, nn::Init::kOnes);
    head_ = c_.tied
                ? embedding_
                : output_matrix("lm_head.weight", c_.vocab_size, w, std, SplitRule::vocabulary());
    info_.output = head_;
    if (!c_.tied) info_.lookup = embedding_;
    info_.vocab_size = c_.vocab_size;
    info_.max_positions = rotary_positions(c_.rotary);
    info_.angles_follow_length = c_.rotary.scaling == RotaryScaling::kDynamic;
    info_.layers = static_cast<int>(c_.layers);
    info_.kv_heads = c_.kv_heads;
    info_.head_size = c_.head_size;
  }

  ExternalName external_name(ParamId id) const override {
    const std::string& name = parameters_[id].name;
    return {name == "lm_head.weight" ? name : external_prefix() + name};
  }
  std::string external_prefix() const override { return "model."; }
  bool ignorable_external(const std::string& name) const override {
    return name.ends_with(".rotary_emb.inv_freq");
  }

 private:
  struct Block {
    ParamId norm1, norm2;
    Projection q, k, v, out, gate, up, down;
  };

  nn::NormOutput norm(Tape& tape, const ResidualStream& s, ParamId gamma) const {
    return nn::rms_norm(tape, s.x, s.residual, gamma, static_cast<float>(c_.norm_epsilon));
  }

  nn::RotaryTable rotary_table(const OpContext& ctx, const Batch& batch) const override {
    return tables_.rows(ctx, batch.position_ids, batch.positions);
  }

  ResidualStream run_embedding(Tape& tape, const PassContext& pass) const override {
    return {nn::embedding(tape, pass.batch.ids, embedding_, Tensor(), nn::kNoParam, c_.padding),
            {}};
  }

  ResidualStream run_block(Tape& tape, const PassContext& pass, int64_t index,
                           const ResidualStream& in) const override {
    const Block& b = blocks_[static_cast<size_t>(index)];
    const auto norm1 = norm(tape, in, b.norm1);
    const Value q = rotated(tape, apply(tape, norm1.y, b.q), c_.heads, pass);
    const Value k = rotated(tape, apply(tape, norm1.y, b.k), c_.kv_heads, pass);
    const Value v = apply(tape, norm1.y, b.v);
    nn::Attention spec;
    spec.heads = c_.heads;
    spec.kv_heads = c_.kv_heads;
    spec.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c_.head_size)));
    spec.dropout = c_.attention_dropout;
    spec.window = c_.windows[static_cast<size_t>(index)];
    spec.key_mask = pass.batch.key_mask;
    spec.segments = pass.batch.segments;
    turn_on_the_way(spec, pass);
    const Value mixed =
        nn::attention(tape, q, k, v, spec, pass.options.state, static_cast<int>(index));
    const auto norm2 = norm(tape, {apply(tape, mixed, b.out), norm1.sum}, b.norm2);
    const Value gate = apply(tape, norm2.y, b.gate);
    const Value up = apply(tape, norm2.y, b.up);
    return {nn::gated_linear(tape, gate, up, c_.activation, b.down), norm2.sum};
  }

  Value run_last_norm(Tape& tape, const ResidualStream& in) const override {
    return norm(tape, in, norm_).y;
  }

  Value run_head(Tape& tape, const PassContext& pass, const Value& hidden) const override {
    return vocabulary(tape, hidden, {head_, nn::kNoParam}, pass.options);
  }

  LlamaConfig c_;
  RotaryTables tables_;
  std::vector<Block> blocks_;
  ParamId embedding_, norm_, head_;
};

}  // namespace

std::unique_ptr<Architecture> make_llama(const Json& config) {
  return std::make_unique<Llama>(config, Kind::kLlama, "llama", "LlamaForCausalLM");
}

std::unique_ptr<Architecture> make_mistral(const Json& config) {
  return std::make_unique<Llama>(config, Kind::kMistral, "mistral", "MistralForCausalLM");
}

std::unique_ptr<Architecture> make_qwen2(const Json& config) {
  return std::make_unique<Llama>(config, Kind::kQwen2, "qwen2", "Qwen2ForCausalLM");
}

}  // namespace ds::models
