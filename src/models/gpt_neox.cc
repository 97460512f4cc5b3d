#include "models/gpt_neox.h"

#include <cmath>

#include "models/family.h"
#include "models/rotary_scaling.h"

namespace ds::models {
namespace {

using nn::ParamId;
using nn::Tape;
using nn::Value;

struct NeoxConfig {
  int64_t vocab_size = 50432;
  int64_t width = 6144;
  int64_t inner = 24576;
  int64_t layers = 44;
  int64_t heads = 64;
  int64_t positions = 2048;
  ops::Activation activation = ops::Activation::kGeluErf;
  double norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  double attention_dropout = 0;
  double hidden_dropout = 0;
  bool attention_bias = true;
  bool parallel = true;
  bool tied = false;
  RotaryConfig rotary;
};

NeoxConfig parse(const Json& config) {
  const ConfigReader read(config);
  read.ignore_common();
  // The last two are in the first release's file, where the reference does not read them either.
  read.ignore({"classifier_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"});
  NeoxConfig c;
  c.vocab_size = read.count("vocab_size", c.vocab_size, int64_t{1} << 30);
  c.width = read.count("hidden_size", c.width, int64_t{1} << 20);
  c.inner = read.count("intermediate_size", c.inner, int64_t{1} << 22);
  c.layers = read.count("num_hidden_layers", c.layers, 10000);
  c.heads = read.count("num_attention_heads", c.heads, int64_t{1} << 16);
  DS_CHECK(c.width % c.heads == 0, Code::kConfig, read.where(), ": hidden_size ", c.width,
           " is not a multiple of num_attention_heads ", c.heads);
  check_heads(read, c.heads, c.heads, c.width / c.heads);
  c.positions = read.count("max_position_embeddings", c.positions, int64_t{1} << 24);
  c.activation = read_activation(read, "hidden_act", "gelu");
  c.norm_epsilon = read.number("layer_norm_eps", c.norm_epsilon, 0, 1);
  c.initializer_range = read.number("initializer_range", c.initializer_range, 0, 1e3);
  c.attention_dropout = read.number("attention_dropout", 0, 0, 1);
  c.hidden_dropout = read.number("hidden_dropout", 0, 0, 1);
  c.attention_bias = read.flag("attention_bias", true);
  c.parallel = read.flag("use_parallel_residual", true);
  c.tied = read.flag("tie_word_embeddings", false);
  RotaryDefaults rotary;
  rotary.partial = 0.25;
  rotary.theta_key = "rotary_emb_base";
  rotary.partial_key = "rotary_pct";
  // Some writers add the names that other families use; they say the same.
  read.ignore({"rope_theta", "partial_rotary_factor"});
  c.rotary = read_rotary(read, c.width / c.heads, c.positions, rotary);
  read.finish();
  return c;
}

class GptNeox : public FamilyBase {
 public:
  explicit GptNeox(const Json& config)
      : FamilyBase(config, "gpt_neox", "GPTNeoXForCausalLM"),
        c_(parse(config)),
        tables_(c_.rotary) {
    config_["tie_word_embeddings"] = c_.tied;
    config_["max_position_embeddings"] = c_.positions;
    const double std = c_.initializer_range;
    const int64_t w = c_.width;
    embedding_ = matrix("embed_in.weight", c_.vocab_size, w, std,
                        c_.tied ? std::vector<std::string>{"embed_out.weight", "lm_head.weight"}
                                : std::vector<std::string>(),
                        SplitRule::vocabulary());
    const int64_t head_size = w / c_.heads;
    for (int64_t i = 0; i < c_.layers; ++i) {
      const std::string p = "layers." + std::to_string(i) + ".";
      Block b;
      b.norm1 = layer_norm(p + "input_layernorm", w);
      b.norm2 = layer_norm(p + "post_attention_layernorm", w);
      b.qkv = projection(p + "attention.query_key_value", 3 * w, w, std, c_.attention_bias,
                         SplitRule::head_rows({{c_.heads, 3 * head_size}}));
      b.out = projection(p + "attention.dense", w, w, std, c_.attention_bias,
                         SplitRule::head_columns({{c_.heads, head_size}}));
      b.up = projection(p + "mlp.dense_h_to_4h", c_.inner, w, std, true, SplitRule::rows());
      b.down = projection(p + "mlp.dense_4h_to_h", w, c_.inner, std, true, SplitRule::columns());
      blocks_.push_back(b);
    }
    norm_ = layer_norm("final_layer_norm", w);
    head_ = c_.tied
                ? embedding_
                : output_matrix("embed_out.weight", c_.vocab_size, w, std, SplitRule::vocabulary());
    info_.output = head_;
    if (!c_.tied) info_.lookup = embedding_;
    info_.vocab_size = c_.vocab_size;
    info_.max_positions = rotary_positions(c_.rotary);
    info_.angles_follow_length = c_.rotary.scaling == RotaryScaling::kDynamic;
    info_.layers = static_cast<int>(c_.layers);
    info_.kv_heads = c_.heads;
    info_.head_size = w / c_.heads;
  }

  ExternalName external_name(ParamId id) const override {
    const std::string& name = parameters_[id].name;
    if (name == "embed_out.weight") return {name, false, {"lm_head.weight"}};
    return {external_prefix() + name};
  }
  std::string external_prefix() const override { return "gpt_neox."; }
  bool ignorable_external(const std::string& name) const override {
    return name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias") ||
           name.ends_with(".rotary_emb.inv_freq");
  }

 private:
  struct Block {
    Projection norm1, norm2, qkv, out, up, down;
  };

  nn::RotaryTable rotary_table(const OpContext& ctx, const Batch& batch) const override {
    return tables_.rows(ctx, batch.position_ids, batch.positions);
  }

  ResidualStream run_embedding(Tape& tape, const PassContext& pass) const override {
    const Value x = nn::embedding(tape, pass.batch.ids, embedding_, Tensor(), nn::kNoParam);
    return {nn::dropout(tape, x, c_.hidden_dropout), {}};
  }

  Value attend(Tape& tape, const PassContext& pass, const Value& x, int64_t index) const {
    const Block& b = blocks_[static_cast<size_t>(index)];
    const auto qkv = nn::split_qkv(tape, apply(tape, x, b.qkv), c_.heads, nn::QkvLayout::kPerHead);
    const Value q = rotated(tape, qkv[0], c_.heads, pass);
    const Value k = rotated(tape, qkv[1], c_.heads, pass);
    nn::Attention spec;
    spec.heads = spec.kv_heads = c_.heads;
    spec.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(info_.head_size)));
    spec.dropout = c_.attention_dropout;
    spec.key_mask = pass.batch.key_mask;
    spec.segments = pass.batch.segments;
    turn_on_the_way(spec, pass);
    const Value mixed =
        nn::attention(tape, q, k, qkv[2], spec, pass.options.state, static_cast<int>(index));
    return nn::dropout(tape, apply(tape, mixed, b.out), c_.hidden_dropout);
  }

  Value feed_forward(Tape& tape, const Value& x, const Block& b) const {
    return nn::dropout(tape, mlp(tape, x, b.up, b.down, c_.activation), c_.hidden_dropout);
  }

  ResidualStream run_block(Tape& tape, const PassContext& pass, int64_t index,
                           const ResidualStream& in) const override {
    const Block& b = blocks_[static_cast<size_t>(index)];
    const auto norm1 = normalise(tape, in, b.norm1, c_.norm_epsilon);
    const Value attended = attend(tape, pass, norm1.y, index);
    if (c_.parallel) {
      const auto norm2 = normalise(tape, {norm1.sum, {}}, b.norm2, c_.norm_epsilon);
      return {nn::add(tape, attended, feed_forward(tape, norm2.y, b)), norm1.sum};
    }
    const auto norm2 = normalise(tape, {attended, norm1.sum}, b.norm2, c_.norm_epsilon);
    return {feed_forward(tape, norm2.y, b), norm2.sum};
  }

  Value run_last_norm(Tape& tape, const ResidualStream& in) const override {
    return normalise(tape, in, norm_, c_.norm_epsilon).y;
  }

  Value run_head(Tape& tape, const PassContext& pass, const Value& hidden) const override {
    return vocabulary(tape, hidden, {head_, nn::kNoParam}, pass.options);
  }

  NeoxConfig c_;
  RotaryTables tables_;
  std::vector<Block> blocks_;
  Projection norm_;
  ParamId embedding_, head_;
};

}  // namespace

std::unique_ptr<Architecture> make_gpt_neox(const Json& config) {
  return std::make_unique<GptNeox>(config);
}

}  // namespace ds::models
