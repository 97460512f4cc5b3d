#include "models/deepseek.h"

#include <algorithm>
#include <optional>

#include "models/deepseek_config.h"
#include "models/rms_decoder.h"
#include "nn/latent_attention.h"

namespace ds::models {
namespace {

using nn::ParamId;
using nn::Tape;
using nn::Value;

class Deepseek : public RmsDecoder {
 public:
  Deepseek(const Json& config, DeepseekKind kind, const char* model_type, const char* architecture)
      : Deepseek(config, parse_deepseek(config, kind), model_type, architecture) {}

  // Files may hold layers behind the last one, which predict further tokens.
  bool ignorable_external(const std::string& name) const override {
    const std::string prefix = "layers.";
    const size_t at = name.starts_with(external_prefix()) ? external_prefix().size() : 0;
    if (name.compare(at, prefix.size(), prefix) == 0) {
      int64_t layer = 0;
      size_t digit = at + prefix.size();
      for (; digit < name.size() && name[digit] >= '0' && name[digit] <= '9'; ++digit) {
        layer = std::min<int64_t>(layer * 10 + (name[digit] - '0'), INT32_MAX);
      }
      if (digit < name.size() && name[digit] == '.' && layer >= c_.layers) return true;
    }
    return RmsDecoder::ignorable_external(name);
  }

 private:
  struct Block {
    ParamId norm1, norm2;
    nn::LatentAttention attention;
    Projection out;
    nn::FeedForward mlp;  // or
    std::optional<nn::Moe> experts = {};
  };

  Deepseek(const Json& config, const DeepseekConfig& parsed, const char* model_type,
           const char* architecture)
      : RmsDecoder(config, model_type, architecture,
                   {parsed.vocab_size, parsed.width, parsed.initializer_range, parsed.tied,
                    parsed.padding, parsed.norm_epsilon, parsed.rotary}),
        c_(parsed) {
    // What defaults decided is written out, so that every reader sees the same model.
    config_["num_key_value_heads"] = c_.attention.heads;
    config_["max_position_embeddings"] = c_.positions;
    // Layers that predict further tokens are not part of this model.
    if (c_.kind == DeepseekKind::kV3) config_["num_nextn_predict_layers"] = 0;
    for (int64_t i = 0; i < c_.layers; ++i) add_block(i);
    add_head();
    info_.layers = static_cast<int>(c_.layers);
    info_.kv_heads = 1;
    info_.head_size = c_.attention.turning + c_.attention.rank;
    info_.values_in_keys = c_.attention.rank;
  }

  ParamId norm_vector(const std::string& name, int64_t size) {
    return vector(name + ".weight", size, nn::Init::kOnes);
  }

  void add_block(int64_t index) {
    const std::string p = "layers." + std::to_string(index) + ".";
    const double std = c_.initializer_range;
    Block b;
    b.norm1 = norm_vector(p + "input_layernorm", c_.width);
    b.attention = add_attention(p + "self_attn.");
    const DeepseekConfig::Attention& a = c_.attention;
    b.out = projection(p + "self_attn.o_proj", c_.width, a.heads * a.values, std, a.bias,
                       SplitRule::head_columns({{a.heads, a.values}}));
    b.norm2 = norm_vector(p + "post_attention_layernorm", c_.width);
    if (c_.experts.layers[static_cast<size_t>(index)]) {
      b.experts = add_experts(p + "mlp.", index);
    } else {
      b.mlp = gated_mlp(p + "mlp.", kMlpNames, {c_.width, c_.inner, std, c_.mlp_bias});
    }
    blocks_.push_back(std::move(b));
  }

  nn::LatentAttention add_attention(const std::string& p) {
    const DeepseekConfig::Attention& a = c_.attention;
    const double std = c_.initializer_range;
    const SplitRule by_query = SplitRule::head_rows({{a.heads, a.plain + a.turning}});
    nn::LatentAttention out;
    if (a.query_rank > 0) {
      out.latent_query = projection(p + "q_a_proj", a.query_rank, c_.width, std, a.bias);
      out.query_norm = norm_vector(p + "q_a_layernorm", a.query_rank);
    }
    out.query = a.query_rank > 0 ? projection(p + "q_b_proj", a.heads * (a.plain + a.turning),
                                              a.query_rank, std, false, by_query)
                                 : projection(p + "q_proj", a.heads * (a.plain + a.turning),
                                              c_.width, std, false, by_query);
    out.latent = projection(p + "kv_a_proj_with_mqa", a.rank + a.turning, c_.width, std, a.bias);
    out.latent_norm = norm_vector(p + "kv_a_layernorm", a.rank);
    out.expand = read_by_heads(p + "kv_b_proj", a.heads * (a.plain + a.values), a.rank, std,
                               SplitRule::head_rows({{a.heads, a.plain + a.values}}));
    out.heads = a.heads;
    out.plain = a.plain;
    out.turning = a.turning;
    out.values = a.values;
    out.interleaved = a.interleaved;
    return out;
  }

  nn::Moe add_experts(const std::string& p, int64_t index) {
    const DeepseekConfig::Experts& e = c_.experts;
    const double std = c_.initializer_range;
    nn::Moe moe;
    moe.index = index;
    moe.activation = c_.activation;
    moe.router = e.router;
    moe.router.weight = matrix(p + "gate.weight", e.count, c_.width, std);
    if (e.biased) {
      moe.router.bias = router_bias(p + "gate.e_score_correction_bias", e.count);
      if (e.bias_rate > 0) {
        info_.router_biases.push_back({index, moe.router.weight, moe.router.bias, e.bias_rate});
      }
    }
    for (int64_t i = 0; i < e.count; ++i) {
      moe.experts.push_back(gated_mlp(str_cat(p, "experts.", i, "."), kMlpNames,
                                      {c_.width, e.inner, std, false, e.count}, i));
    }
    if (e.shared > 0) {
      moe.shared = gated_mlp(p + "shared_experts.", kMlpNames,
                             {c_.width, e.inner * e.shared, std, c_.mlp_bias});
    }
    info_.experts = e.count;
    info_.expert_layers.push_back(index);
    info_.experts_per_token = e.router.rule.choices;
    return moe;
  }

  Value attended(Tape& tape, const PassContext& pass, int64_t index, const Value& x) const {
    const Block& b = blocks_[static_cast<size_t>(index)];
    nn::Attention spec;
    spec.scale = static_cast<float>(c_.attention.scale);
    spec.dropout = c_.attention.dropout;
    spec.key_mask = pass.batch.key_mask;
    spec.segments = pass.batch.segments;
    spec.table = pass.rotary;
    spec.position_ids = pass.batch.position_ids;
    return apply(tape,
                 nn::latent_attention(tape, x, b.attention, spec, pass.options.state,
                                      static_cast<int>(index)),
                 b.out);
  }

  ResidualStream run_block(Tape& tape, const PassContext& pass, int64_t index,
                           const ResidualStream& in) const override {
    const Block& b = blocks_[static_cast<size_t>(index)];
    const auto norm1 = norm(tape, in, b.norm1);
    const auto norm2 = norm(tape, {attended(tape, pass, index, norm1.y), norm1.sum}, b.norm2);
    if (!b.experts) return {nn::feed_forward(tape, norm2.y, b.mlp, c_.activation), norm2.sum};
    return {nn::moe(tape, norm2.y, *b.experts, moe_pass(pass)), norm2.sum};
  }

  DeepseekConfig c_;
  std::vector<Block> blocks_;
};

}  // namespace

std::unique_ptr<Architecture> make_deepseek_v2(const Json& config) {
  return std::make_unique<Deepseek>(config, DeepseekKind::kV2, "deepseek_v2",
                                    "DeepseekV2ForCausalLM");
}

std::unique_ptr<Architecture> make_deepseek_v3(const Json& config) {
  return std::make_unique<Deepseek>(config, DeepseekKind::kV3, "deepseek_v3",
                                    "DeepseekV3ForCausalLM");
}

}  // namespace ds::models
