#include "models/llama.h"

#include <array>
#include <cmath>
#include <optional>

#include "models/llama_config.h"
#include "models/rms_decoder.h"

namespace ds::models {
namespace {

using nn::ParamId;
using nn::Tape;
using nn::Value;

constexpr std::array kMixtralNames = {"w1", "w3", "w2"};

class Llama : public RmsDecoder {
 public:
  Llama(const Json& config, LlamaKind kind, const char* model_type, const char* architecture)
      : Llama(config, parse_llama(config, kind), model_type, architecture) {}

 private:
  Llama(const Json& config, const LlamaConfig& parsed, const char* model_type,
        const char* architecture)
      : RmsDecoder(config, model_type, architecture,
                   {parsed.vocab_size, parsed.width, parsed.initializer_range, parsed.tied,
                    parsed.padding, parsed.norm_epsilon, parsed.rotary}),
        c_(parsed) {
    // What defaults decided is written out, so that every reader sees the same model.
    config_["num_key_value_heads"] = c_.kv_heads;
    config_["head_dim"] = c_.head_size;
    config_["max_position_embeddings"] = c_.positions;
    // Transformers 5 and those before it have two names for it.
    if (c_.kind == LlamaKind::kQwen3Moe) {
      config_["num_experts"] = config_["num_local_experts"] = c_.experts.count;
    }
    for (int64_t i = 0; i < c_.layers; ++i) add_block(i);
    add_head();
    info_.layers = static_cast<int>(c_.layers);
    info_.kv_heads = c_.kv_heads;
    info_.head_size = c_.head_size;
  }

  struct Block {
    ParamId norm1, norm2;
    ParamId q_norm = nn::kNoParam, k_norm = nn::kNoParam;
    Projection q, k, v, out;
    nn::FeedForward mlp;  // or
    std::optional<nn::Moe> experts = {};
  };

  void add_block(int64_t index) {
    const double std = c_.initializer_range;
    const int64_t w = c_.width, q = c_.heads * c_.head_size, kv = c_.kv_heads * c_.head_size;
    const SplitRule::Section queries = {c_.heads, c_.head_size};
    const SplitRule by_query = SplitRule::head_rows({queries});
    const SplitRule by_key = SplitRule::head_rows({{c_.kv_heads, c_.head_size, true}});
    const std::string p = "layers." + std::to_string(index) + ".";
    const auto norm = [&](const char* name, int64_t size) {
      return vector(p + name + ".weight", size, nn::Init::kOnes);
    };
    Block b;
    b.norm1 = norm(c_.norms_after ? "post_attention_layernorm" : "input_layernorm", w);
    b.q = projection(p + "self_attn.q_proj", q, w, std, c_.qkv_bias, by_query);
    b.k = projection(p + "self_attn.k_proj", kv, w, std, c_.qkv_bias, by_key);
    b.v = projection(p + "self_attn.v_proj", kv, w, std, c_.qkv_bias, by_key);
    if (c_.head_norm != HeadNorm::kNone) {
      const bool each = c_.head_norm == HeadNorm::kEach;
      b.q_norm = norm("self_attn.q_norm", each ? c_.head_size : q);
      b.k_norm = norm("self_attn.k_norm", each ? c_.head_size : kv);
    }
    b.out = projection(p + "self_attn.o_proj", w, q, std, c_.out_bias,
                       SplitRule::head_columns({queries}));
    b.norm2 = norm(c_.norms_after ? "post_feedforward_layernorm" : "post_attention_layernorm", w);
    if (c_.experts.count > 0 && c_.experts.layers[static_cast<size_t>(index)]) {
      b.experts = add_experts(p, index);
    } else {
      b.mlp = gated_mlp(p + "mlp.", kMlpNames, {w, c_.inner, std, c_.mlp_bias});
    }
    blocks_.push_back(std::move(b));
  }

  nn::Moe add_experts(const std::string& prefix, int64_t index) {
    const ExpertsConfig& e = c_.experts;
    const bool mixtral = c_.kind == LlamaKind::kMixtral;
    const std::string p = prefix + (mixtral ? "block_sparse_moe." : "mlp.");
    const double std = c_.initializer_range;
    nn::Moe moe;
    moe.index = index;
    moe.activation = c_.activation;
    nn::Router& router = moe.router;
    router.weight = matrix(p + "gate.weight", e.count, c_.width, std);
    router.rule.choices = e.choices;
    router.rule.normalise = e.normalise;
    router.losses.balance = static_cast<float>(e.balance);
    router.losses.pooled = true;  // as Transformers takes it
    router.jitter = static_cast<float>(e.jitter);
    for (int64_t i = 0; i < e.count; ++i) {
      moe.experts.push_back(gated_mlp(str_cat(p, "experts.", i, "."),
                                      mixtral ? kMixtralNames : kMlpNames,
                                      {c_.width, e.inner, std, false, e.count}, i));
    }
    if (e.shared_inner > 0) {
      moe.shared = gated_mlp(p + "shared_expert.", kMlpNames, {c_.width, e.shared_inner, std});
      moe.shared_gate = matrix(p + "shared_expert_gate.weight", 1, c_.width, std);
    }
    info_.experts = e.count;
    info_.expert_layers.push_back(index);
    info_.experts_per_token = e.choices;
    return moe;
  }

  // Queries or keys [B, T, H * D], normalised where the family does that, at their positions.
  Value turned(Tape& tape, Value x, int64_t heads, ParamId gamma, const PassContext& pass) const {
    if (c_.head_norm == HeadNorm::kEach) {
      x = nn::reshaped(tape, x, {x.data.size(0), x.data.size(1), heads, c_.head_size});
    }
    if (gamma != nn::kNoParam) x = norm(tape, {x, {}}, gamma).y;
    return rotated(tape, x, heads, pass);
  }

  Value attended(Tape& tape, const PassContext& pass, int64_t index, const Value& x) const {
    const Block& b = blocks_[static_cast<size_t>(index)];
    const Value q = turned(tape, apply(tape, x, b.q), c_.heads, b.q_norm, pass);
    const Value k = turned(tape, apply(tape, x, b.k), c_.kv_heads, b.k_norm, pass);
    const Value v = apply(tape, x, b.v);
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
    return apply(tape, mixed, b.out);
  }

  Value mlp_of(Tape& tape, const PassContext& pass, const Block& b, const Value& x) const {
    if (!b.experts) return nn::feed_forward(tape, x, b.mlp, c_.activation);
    return nn::moe(tape, x, *b.experts, moe_pass(pass));
  }

  ResidualStream run_block(Tape& tape, const PassContext& pass, int64_t index,
                           const ResidualStream& in) const override {
    const Block& b = blocks_[static_cast<size_t>(index)];
    if (c_.norms_after) {
      const Value x = in.residual ? nn::add(tape, in.x, in.residual) : in.x;
      const Value mixed = norm(tape, {attended(tape, pass, index, x), {}}, b.norm1).y;
      const Value sum = nn::add(tape, x, mixed);
      return {norm(tape, {mlp_of(tape, pass, b, sum), {}}, b.norm2).y, sum};
    }
    const auto norm1 = norm(tape, in, b.norm1);
    const auto norm2 = norm(tape, {attended(tape, pass, index, norm1.y), norm1.sum}, b.norm2);
    return {mlp_of(tape, pass, b, norm2.y), norm2.sum};
  }

  LlamaConfig c_;
  std::vector<Block> blocks_;
};

}  // namespace

std::unique_ptr<Architecture> make_llama(const Json& config) {
  return std::make_unique<Llama>(config, LlamaKind::kLlama, "llama", "LlamaForCausalLM");
}

std::unique_ptr<Architecture> make_mistral(const Json& config) {
  return std::make_unique<Llama>(config, LlamaKind::kMistral, "mistral", "MistralForCausalLM");
}

std::unique_ptr<Architecture> make_mixtral(const Json& config) {
  return std::make_unique<Llama>(config, LlamaKind::kMixtral, "mixtral", "MixtralForCausalLM");
}

std::unique_ptr<Architecture> make_qwen2(const Json& config) {
  return std::make_unique<Llama>(config, LlamaKind::kQwen2, "qwen2", "Qwen2ForCausalLM");
}

std::unique_ptr<Architecture> make_qwen2_moe(const Json& config) {
  return std::make_unique<Llama>(config, LlamaKind::kQwen2Moe, "qwen2_moe", "Qwen2MoeForCausalLM");
}

std::unique_ptr<Architecture> make_qwen3(const Json& config) {
  return std::make_unique<Llama>(config, LlamaKind::kQwen3, "qwen3", "Qwen3ForCausalLM");
}

std::unique_ptr<Architecture> make_qwen3_moe(const Json& config) {
  return std::make_unique<Llama>(config, LlamaKind::kQwen3Moe, "qwen3_moe", "Qwen3MoeForCausalLM");
}

std::unique_ptr<Architecture> make_olmo2(const Json& config) {
  return std::make_unique<Llama>(config, LlamaKind::kOlmo2, "olmo2", "Olmo2ForCausalLM");
}

std::unique_ptr<Architecture> make_olmoe(const Json& config) {
  return std::make_unique<Llama>(config, LlamaKind::kOlmoe, "olmoe", "OlmoeForCausalLM");
}

}  // namespace ds::models
