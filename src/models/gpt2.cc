#include "models/gpt2.h"

#include <cmath>

#include "nn/layers.h"

namespace ds::models {
namespace {

using nn::ParamId;
using nn::Tape;
using nn::Value;

struct Block {
  ParamId norm1_w, norm1_b, qkv_w, qkv_b, out_w, out_b;
  ParamId norm2_w, norm2_b, up_w, up_b, down_w, down_b;
};

class Gpt2 : public Architecture {
 public:
  explicit Gpt2(const Json& config) : c_(parse_gpt2_config(config)), config_(config) {
    config_["model_type"] = "gpt2";
    config_["architectures"] = Json::array({"GPT2LMHeadModel"});
    const double std = c_.initializer_range;
    // Residual outputs start smaller, so that their sum over the depth does not grow.
    const double out_std = std / std::sqrt(2.0 * static_cast<double>(c_.layers));
    const int64_t w = c_.width;
    wte_ = matrix("wte.weight", c_.vocab_size, w, std, c_.tied ? "lm_head.weight" : "");
    wpe_ = matrix("wpe.weight", c_.positions, w, std);
    for (int64_t i = 0; i < c_.layers; ++i) {
      const std::string p = "h." + std::to_string(i) + ".";
      Block b;
      norm(p + "ln_1", b.norm1_w, b.norm1_b);
      projection(p + "attn.c_attn", 3 * w, w, std, b.qkv_w, b.qkv_b);
      projection(p + "attn.c_proj", w, w, out_std, b.out_w, b.out_b);
      norm(p + "ln_2", b.norm2_w, b.norm2_b);
      projection(p + "mlp.c_fc", c_.inner, w, std, b.up_w, b.up_b);
      projection(p + "mlp.c_proj", w, c_.inner, out_std, b.down_w, b.down_b);
      blocks_.push_back(b);
    }
    norm("ln_f", norm_w_, norm_b_);
    head_ = c_.tied ? wte_ : matrix("lm_head.weight", c_.vocab_size, w, std);
    info_.vocab_size = c_.vocab_size;
    info_.max_positions = c_.positions;
    info_.layers = static_cast<int>(c_.layers);
    info_.kv_heads = c_.heads;
    info_.head_size = w / c_.heads;
  }

  const nn::ParameterSet& parameters() const override { return parameters_; }
  const ArchitectureInfo& info() const override { return info_; }
  const Json& config() const override { return config_; }

  Value hidden(Tape& tape, const Batch& batch, const ForwardOptions& options) const override {
    Stream s;
    s.x = nn::embedding(tape, batch.ids, wte_, batch.position_ids, wpe_);
    s.x = nn::dropout(tape, s.x, c_.embedding_dropout);
    const auto layers = static_cast<int64_t>(blocks_.size());
    const int64_t segments = tape.recording() ? std::min(options.checkpoint_segments, layers) : 0;
    if (segments <= 0) {
      for (int64_t i = 0; i < layers; ++i) s = block(tape, s, i, batch, options);
    }
    for (int64_t segment = 0; segment < segments; ++segment) {
      const int64_t begin = segment * layers / segments, end = (segment + 1) * layers / segments;
      const auto body = [this, begin, end, batch, options](Tape& t, std::span<const Value> in) {
        Stream inner{in[0], in.size() > 1 ? in[1] : Value()};
        for (int64_t i = begin; i < end; ++i) inner = block(t, inner, i, batch, options);
        return std::vector<Value>{inner.x, inner.residual};
      };
      std::vector<Value> inputs{s.x};
      if (s.residual) inputs.push_back(s.residual);
      const std::vector<Value> outputs = tape.checkpoint(inputs, body);
      s = {outputs[0], outputs[1]};
    }
    if (options.cache != nullptr) options.cache->advance(batch.ids.size(1));
    if (options.last_only) s = last_position(tape, s);
    return nn::layer_norm(tape, s.x, s.residual, norm_w_, norm_b_, epsilon()).y;
  }

  Value logits(Tape& tape, const Batch& batch, const ForwardOptions& options) const override {
    return nn::linear(tape, hidden(tape, batch, options), head_, nn::kNoParam);
  }

  ExternalName external_name(ParamId id) const override {
    const std::string& name = parameters_[id].name;
    // Hugging Face's Conv1D stores its weights input by output.
    const bool transposed = name.find(".c_") != std::string::npos && name.ends_with(".weight");
    return {name == "lm_head.weight" ? name : external_prefix() + name, transposed};
  }
  std::string external_prefix() const override { return "transformer."; }
  bool ignorable_external(const std::string& name) const override {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  }

 private:
  // The residual stream, kept as two summands so that each norm adds them while it reads them.
  struct Stream {
    Value x;
    Value residual;
  };

  float epsilon() const { return static_cast<float>(c_.norm_epsilon); }

  Stream block(Tape& tape, const Stream& in, int64_t index, const Batch& batch,
               const ForwardOptions& options) const {
    const Block& b = blocks_[static_cast<size_t>(index)];
    const auto norm1 = nn::layer_norm(tape, in.x, in.residual, b.norm1_w, b.norm1_b, epsilon());
    const Value qkv = nn::linear(tape, norm1.y, b.qkv_w, b.qkv_b);
    const nn::SelfAttention spec = attention_spec(index, batch);
    const Value mixed =
        options.cache != nullptr
            ? nn::cached_attention(tape, qkv, spec, *options.cache, static_cast<int>(index))
            : nn::self_attention(tape, qkv, spec);
    Value out = nn::linear(tape, mixed, b.out_w, b.out_b);
    out = nn::dropout(tape, out, c_.residual_dropout);
    const auto norm2 = nn::layer_norm(tape, out, norm1.sum, b.norm2_w, b.norm2_b, epsilon());
    Value up = nn::linear(tape, norm2.y, b.up_w, nn::kNoParam);
    up = nn::bias_gelu(tape, up, b.up_b, c_.gelu);
    Value down = nn::linear(tape, up, b.down_w, b.down_b);
    down = nn::dropout(tape, down, c_.residual_dropout);
    return {down, norm2.sum};
  }

  nn::SelfAttention attention_spec(int64_t index, const Batch& batch) const {
    double scale = 1;
    if (c_.scale_attention) scale /= std::sqrt(static_cast<double>(info_.head_size));
    if (c_.scale_by_layer) scale /= static_cast<double>(index + 1);
    nn::SelfAttention spec;
    spec.heads = c_.heads;
    spec.scale = static_cast<float>(scale);
    spec.dropout = c_.attention_dropout;
    spec.key_mask = batch.key_mask;
    return spec;
  }

  // Only the generator asks for this, one sequence at a time, so rows need no copy.
  static Stream last_position(const Tape& tape, const Stream& s) {
    DS_CHECK(!tape.recording() && s.x.data.size(0) == 1, Code::kInternal,
             "logits of the last position alone are for decoding one sequence");
    const int64_t n = s.x.data.size(1);
    const auto last = [n](const Value& v) {
      return v ? Value{v.data.slice(1, n - 1, n), nullptr} : v;
    };
    return {last(s.x), last(s.residual)};
  }

  ParamId matrix(const std::string& name, int64_t rows, int64_t columns, double std,
                 const std::string& alias = "") {
    nn::Parameter p{name, {rows, columns}, nn::Init::kNormal, std, true, true, {}};
    if (!alias.empty()) p.aliases.push_back(alias);
    return parameters_.add(std::move(p));
  }
  void projection(const std::string& name, int64_t out, int64_t in, double std, ParamId& weight,
                  ParamId& bias) {
    weight = matrix(name + ".weight", out, in, std);
    bias = parameters_.add({name + ".bias", {out}, nn::Init::kZeros, 0, false, true, {}});
  }
  void norm(const std::string& name, ParamId& weight, ParamId& bias) {
    weight = parameters_.add({name + ".weight", {c_.width}, nn::Init::kOnes, 0, false, true, {}});
    bias = parameters_.add({name + ".bias", {c_.width}, nn::Init::kZeros, 0, false, true, {}});
  }

  Gpt2Config c_;
  Json config_;
  ArchitectureInfo info_;
  nn::ParameterSet parameters_;
  std::vector<Block> blocks_;
  ParamId wte_, wpe_, norm_w_, norm_b_, head_;
};

}  // namespace

std::unique_ptr<Architecture> make_gpt2(const Json& config) {
  return std::make_unique<Gpt2>(config);
}

}  // namespace ds::models
