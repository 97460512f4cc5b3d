#include "models/gpt2.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "models/family.h"

namespace ds::models {
namespace {

using nn::ParamId;
using nn::Tape;
using nn::Value;

class Gpt2 : public FamilyBase {
 public:
  Gpt2(const Json& config, const char* model_type, const char* architecture, bool experts)
      : FamilyBase(config, model_type, architecture), c_(parse_gpt2_config(config, experts)) {
    config_["tie_word_embeddings"] = c_.tied;
    const double std = c_.initializer_range;
    // Residual outputs start smaller, so that their sum over the depth does not grow.
    const double out_std = std / std::sqrt(2.0 * static_cast<double>(c_.layers));
    const int64_t w = c_.width;
    wte_ = matrix("wte.weight", c_.vocab_size, w, std,
                  c_.tied ? std::vector<std::string>{"lm_head.weight"} : std::vector<std::string>(),
                  SplitRule::vocabulary());
    const SplitRule::Section heads = {c_.heads, w / c_.heads};
    wpe_ = matrix("wpe.weight", c_.positions, w, std);
    for (int64_t i = 0; i < c_.layers; ++i) {
      const std::string p = "h." + std::to_string(i) + ".";
      Block b;
      b.norm1 = layer_norm(p + "ln_1", w);
      b.qkv = projection(p + "attn.c_attn", 3 * w, w, std, true,
                         SplitRule::head_rows({heads, heads, heads}));
      b.out = projection(p + "attn.c_proj", w, w, out_std, true, SplitRule::head_columns({heads}));
      b.norm2 = layer_norm(p + "ln_2", w);
      if (c_.experts.of_layer(i) > 0) {
        b.experts = add_experts(p + "mlp.", i, out_std);
      } else {
        b.mlp = add_mlp(p + "mlp.", out_std);
      }
      blocks_.push_back(std::move(b));
    }
    norm_ = layer_norm("ln_f", w);
    head_ = c_.tied
                ? wte_
                : output_matrix("lm_head.weight", c_.vocab_size, w, std, SplitRule::vocabulary());
    info_.output = head_;
    if (!c_.tied) info_.lookup = wte_;
    info_.vocab_size = c_.vocab_size;
    info_.max_positions = c_.positions;
    info_.layers = static_cast<int>(c_.layers);
    info_.kv_heads = c_.heads;
    info_.head_size = w / c_.heads;
  }

  ExternalName external_name(ParamId id) const override {
    const std::string& name = parameters_[id].name;
    // Hugging Face's Conv1D stores its weights input by output.
    return {name == "lm_head.weight" ? name : external_prefix() + name, parameters_[id].projection};
  }
  std::string external_prefix() const override { return "transformer."; }
  bool ignorable_external(const std::string& name) const override {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  }

 private:
  struct Block {
    Projection norm1, qkv, out, norm2;
    nn::FeedForward mlp;  // or
    std::optional<nn::Moe> experts = {};
  };

  // Of a layer with `experts` of them number `expert`.
  nn::FeedForward add_mlp(const std::string& prefix, double out_std, int64_t experts = 0,
                          int64_t expert = -1) {
    nn::FeedForward made;
    made.up = projection(prefix + "c_fc", c_.inner, c_.width, c_.initializer_range, true,
                         SplitRule::rows().of_experts(experts), expert);
    made.down = projection(prefix + "c_proj", c_.width, c_.inner, out_std, true,
                           SplitRule::columns().of_experts(experts), expert);
    return made;
  }

  nn::Moe add_experts(const std::string& prefix, int64_t index, double out_std) {
    const int64_t count = c_.experts.of_layer(index);
    const double std = c_.initializer_range;
    nn::Moe moe;
    moe.index = index;
    moe.activation = c_.activation;
    moe.router = c_.experts.router;
    moe.router.weight = matrix(prefix + "gate.weight", count, c_.width, std);
    if (c_.experts.biased) {
      moe.router.bias = router_bias(prefix + "gate.expert_bias", count);
      info_.router_biases.push_back(
          {index, moe.router.weight, moe.router.bias, c_.experts.bias_rate});
    }
    for (int64_t e = 0; e < count; ++e) {
      moe.experts.push_back(add_mlp(str_cat(prefix, "experts.", e, "."), out_std, count, e));
    }
    if (c_.experts.residual) {
      moe.residual = add_mlp(prefix + "dense.", out_std);
      moe.coefficients.weight = matrix(prefix + "coefficient.weight", 2, c_.width, std);
      moe.coefficients.bias = vector(prefix + "coefficient.bias", 2, nn::Init::kZeros);
    }
    info_.experts = std::max(info_.experts, count);
    info_.expert_layers.push_back(index);
    info_.experts_per_token = moe.router.rule.choices;
    return moe;
  }

  ResidualStream run_embedding(Tape& tape, const PassContext& pass) const override {
    const Batch& batch = pass.batch;
    const Value x = nn::embedding(tape, batch.ids, wte_, batch.position_ids, wpe_);
    return {nn::dropout(tape, x, c_.embedding_dropout), {}};
  }

  ResidualStream run_block(Tape& tape, const PassContext& pass, int64_t index,
                           const ResidualStream& in) const override {
    const Block& b = blocks_[static_cast<size_t>(index)];
    const auto norm1 = normalise(tape, in, b.norm1, c_.norm_epsilon);
    const auto qkv =
        nn::split_qkv(tape, apply(tape, norm1.y, b.qkv), c_.heads, nn::QkvLayout::kThirds);
    const Value mixed =
        nn::attention(tape, qkv[0], qkv[1], qkv[2], attention_spec(index, pass.batch),
                      pass.options.state, static_cast<int>(index));
    Value out = apply(tape, mixed, b.out);
    out = nn::dropout(tape, out, c_.residual_dropout);
    const auto norm2 = normalise(tape, {out, norm1.sum}, b.norm2, c_.norm_epsilon);
    Value down = b.experts ? nn::moe(tape, norm2.y, *b.experts, moe_pass(pass))
                           : mlp(tape, norm2.y, b.mlp.up, b.mlp.down, c_.activation);
    down = nn::dropout(tape, down, c_.residual_dropout);
    return {down, norm2.sum};
  }

  Value run_last_norm(Tape& tape, const ResidualStream& in) const override {
    return normalise(tape, in, norm_, c_.norm_epsilon).y;
  }

  Value run_head(Tape& tape, const PassContext& pass, const Value& hidden) const override {
    return vocabulary(tape, hidden, {head_, nn::kNoParam}, pass.options);
  }

  nn::Attention attention_spec(int64_t index, const Batch& batch) const {
    double scale = 1;
    if (c_.scale_attention) scale /= std::sqrt(static_cast<double>(info_.head_size));
    if (c_.scale_by_layer) scale /= static_cast<double>(index + 1);
    nn::Attention spec;
    spec.heads = spec.kv_heads = c_.heads;
    spec.scale = static_cast<float>(scale);
    spec.dropout = c_.attention_dropout;
    spec.key_mask = batch.key_mask;
    spec.segments = batch.segments;
    return spec;
  }

  Gpt2Config c_;
  std::vector<Block> blocks_;
  Projection norm_;
  ParamId wte_, wpe_, head_;
};

}  // namespace

std::unique_ptr<Architecture> make_gpt2(const Json& config) {
  return std::make_unique<Gpt2>(config, "gpt2", "GPT2LMHeadModel", false);
}

std::unique_ptr<Architecture> make_gpt_moe(const Json& config) {
  return std::make_unique<Gpt2>(config, "gpt_moe", "GPTMoELMHeadModel", true);
}

}  // namespace ds::models
