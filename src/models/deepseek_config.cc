#include "models/deepseek_config.h"

#include <cmath>

#include "models/config_reader.h"
#include "models/family.h"

namespace ds::models {
namespace {

constexpr int64_t kMostChannels = int64_t{1} << 22;

// What the families' configuration classes have where a key is absent.
struct Defaults {
  const char* scoring;
  int64_t vocab_size, width, inner, layers, heads, positions;
  int64_t experts, expert_inner, shared, choices, groups, kept_groups, first_dense;
  double scale;
  bool normalise;
};
constexpr Defaults kV2 = {"softmax", 102400, 4096, 11008, 32, 32, 2048, 64,
                          1407,      2,      0,    1,     1,  0,  1.0,  false};
constexpr Defaults kV3 = {"sigmoid", 129280, 7168, 18432, 61, 128, 4096, 256,
                          2048,      1,      8,    8,     4,  3,   2.5,  true};

// A key that is null means none; an absent one the family's default.
int64_t count_or_none(const ConfigReader& read, const char* key, int64_t fallback, int64_t limit) {
  return read.is_null(key) ? (read.ignore({key}), 0) : read.count(key, fallback, limit, 0);
}

DeepseekConfig::Attention read_attention(const ConfigReader& read, const Defaults& family) {
  DeepseekConfig::Attention a;
  a.heads = read.count("num_attention_heads", family.heads, 1 << 16);
  const int64_t kv_heads = read.count("num_key_value_heads", a.heads, 1 << 16);
  DS_CHECK(kv_heads == a.heads, Code::kUnsupported, read.where(), ": num_key_value_heads ",
           kv_heads,
           " is not available for latent attention: every head has keys and values of its own, ",
           a.heads);
  a.query_rank = count_or_none(read, "q_lora_rank", 1536, kMostChannels);
  a.rank = read.count("kv_lora_rank", 512, kMostChannels);
  a.plain = read.count("qk_nope_head_dim", 128, 1 << 16);
  a.turning = read.count("qk_rope_head_dim", 64, 1 << 16);
  a.values = read.count("v_head_dim", 128, 1 << 16);
  check_heads(read, a.heads, a.heads, a.plain + a.turning);
  check_heads(read, a.heads, a.heads, a.values);
  constexpr int64_t kMostKept = 2048;
  DS_CHECK(a.rank + a.turning <= kMostKept, Code::kUnsupported, read.where(), ": kv_lora_rank ",
           a.rank, " and qk_rope_head_dim ", a.turning, " are more than ", kMostKept,
           " channels together, which are not available");
  a.dropout = read.number("attention_dropout", 0, 0, 1);
  a.bias = read.flag("attention_bias", false);
  // Sizes of heads that Transformers writes beside these.
  read.ignore({"head_dim", "qk_head_dim"});
  return a;
}

// 1 / sqrt(channels), and with yarn's mscale_all_dim twice what it multiplies.
double attention_scale(const DeepseekConfig& c) {
  const double channels = static_cast<double>(c.attention.plain + c.attention.turning);
  double scale = 1 / std::sqrt(channels);
  if (c.rotary.magnitude_of_all != 0 && c.rotary.factor > 1) {
    const double m = 0.1 * c.rotary.magnitude_of_all * std::log(c.rotary.factor) + 1;
    scale *= m * m;
  }
  return scale;
}

void read_groups(const ConfigReader& read, const Defaults& family, bool by_groups,
                 DeepseekConfig::Experts& e) {
  ops::GateRule& rule = e.router.rule;
  const int64_t groups = std::max<int64_t>(
      1, count_or_none(read, "n_group", family.groups, kernels::kMostExpertGroups));
  const int64_t kept = std::max<int64_t>(
      1, count_or_none(read, "topk_group", family.kept_groups, kernels::kMostExpertGroups));
  if (!by_groups) return;
  rule.groups = groups;
  rule.kept_groups = kept;
}

// How experts are chosen: by `topk_method`, from scores by `scoring_func`.
void read_rule(const ConfigReader& read, DeepseekKind kind, const Defaults& family,
               DeepseekConfig::Experts& e) {
  ops::GateRule& rule = e.router.rule;
  const bool v3 = kind == DeepseekKind::kV3;
  const std::string method = read.text("topk_method", v3 ? "noaux_tc" : "greedy");
  const bool by_groups = v3 || method == "group_limited_greedy";
  DS_CHECK(v3 ? method == "noaux_tc" : by_groups || method == "greedy", Code::kUnsupported,
           read.where(), ": topk_method ", printable(method), " is not available; ",
           v3 ? "noaux_tc is" : "greedy and group_limited_greedy are");
  const std::string scoring = read.text("scoring_func", family.scoring);
  DS_CHECK(scoring == family.scoring, Code::kUnsupported, read.where(), ": scoring_func ",
           printable(scoring), " is not available for this model_type; ", family.scoring, " is");
  rule.scores = v3 ? ops::GateScores::kSigmoid : ops::GateScores::kSoftmax;
  // A group is as good as its best expert, or as its two best together.
  rule.group_best = v3 ? 2 : 1;
  rule.floor = 1e-20f;
  e.biased = v3;
  read_groups(read, family, by_groups, e);
  rule.choices = read.count("num_experts_per_tok", family.choices, e.count, 0);
  DS_CHECK(rule.choices > 0, Code::kConfig, read.where(),
           ": num_experts_per_tok is missing: the experts that a token goes through");
  rule.normalise = rule.choices > 1 && read.flag("norm_topk_prob", family.normalise);
  rule.scale = static_cast<float>(read.number("routed_scaling_factor", family.scale, 0, 1e6));
  // As the model's own code has it: weights that add up to 1 are not scaled in V2.
  if (!v3 && rule.normalise) rule.scale = 1;
  try {
    ops::check_gate_rule(rule, e.count);
  } catch (const Error& error) {
    fail(Code::kConfig, read.where(), ": ", error.message(), " (n_routed_experts ", e.count,
         ", n_group ", rule.groups, ", topk_group ", rule.kept_groups, ", num_experts_per_tok ",
         rule.choices, ")");
  }
}

DeepseekConfig::Experts read_experts(const ConfigReader& read, DeepseekKind kind,
                                     const Defaults& family, int64_t layers) {
  DeepseekConfig::Experts e;
  e.count = count_or_none(read, "n_routed_experts", family.experts, kMostExperts);
  e.inner = read.count("moe_intermediate_size", family.expert_inner, kMostChannels);
  e.shared = count_or_none(read, "n_shared_experts", family.shared, 1 << 10);
  const int64_t first = count_or_none(read, "first_k_dense_replace", family.first_dense, 1 << 20);
  const int64_t every = read.count("moe_layer_freq", 1, 10000);
  int64_t with = 0;
  for (int64_t i = 0; i < layers; ++i) {
    e.layers.push_back(e.count > 0 && i >= first && i % every == 0);
    with += e.layers.back() ? 1 : 0;
  }
  read.check_experts("n_routed_experts", e.count * with);
  nn::RouterLosses& losses = e.router.losses;
  const double balance = read.number("router_aux_loss_coef", 0.001, 0, 1e3);
  if (read.flag("output_router_logits", false)) losses.balance = static_cast<float>(balance);
  losses.pooled = true;  // as Transformers takes it
  e.bias_rate = kind == DeepseekKind::kV3 ? read.number("moe_router_bias_update_rate", 0, 0, 1) : 0;
  if (e.count > 0) {
    read_rule(read, kind, family, e);
  } else {
    read.ignore({"topk_method", "scoring_func", "n_group", "topk_group", "num_experts_per_tok",
                 "norm_topk_prob", "routed_scaling_factor"});
  }
  // Settings of training elsewhere; and layers that predict further tokens, which files may hold.
  read.ignore({"aux_loss_alpha", "seq_aux", "ep_size", "num_nextn_predict_layers", "num_mtp_layers",
               "pretraining_tp"});
  return e;
}

}  // namespace

DeepseekConfig parse_deepseek(const Json& config, DeepseekKind kind) {
  const ConfigReader read(config);
  read.ignore_common();
  const Defaults& family = kind == DeepseekKind::kV2 ? kV2 : kV3;
  DeepseekConfig c;
  c.kind = kind;
  c.vocab_size = read.count("vocab_size", family.vocab_size, int64_t{1} << 30);
  c.width = read.count("hidden_size", family.width, int64_t{1} << 20);
  c.inner = read.count("intermediate_size", family.inner, kMostChannels);
  c.layers = read.count("num_hidden_layers", family.layers, 10000);
  c.positions = read.count("max_position_embeddings", family.positions, int64_t{1} << 24);
  c.activation = read_activation(read, "hidden_act", "silu");
  c.norm_epsilon = read.number("rms_norm_eps", c.norm_epsilon, 0, 1);
  c.initializer_range = read.number("initializer_range", c.initializer_range, 0, 1e3);
  c.tied = read.flag("tie_word_embeddings", false);
  c.padding = read.padding_row(c.vocab_size);
  c.attention = read_attention(read, family);
  c.experts = read_experts(read, kind, family, c.layers);
  if (kind == DeepseekKind::kV2) {
    c.mlp_bias = read.flag("mlp_bias", false);
  } else {
    c.attention.interleaved = read.flag("rope_interleave", true);
  }
  RotaryDefaults rotary;
  rotary.partial_allowed = false;
  c.rotary = read_rotary(read, c.attention.turning, c.positions, rotary);
  c.attention.scale = attention_scale(c);
  read.finish();
  return c;
}

}  // namespace ds::models
