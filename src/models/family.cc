#include "models/family.h"

#include <optional>

namespace ds::models {

using nn::Tape;
using nn::Value;

namespace {

std::optional<ops::Gelu> gelu_of(ops::Activation kind) {
  if (kind == ops::Activation::kGeluTanh) return ops::Gelu::kTanh;
  if (kind == ops::Activation::kGeluErf) return ops::Gelu::kErf;
  return std::nullopt;
}

}  // namespace

FamilyBase::FamilyBase(const Json& config, const char* model_type, const char* architecture)
    : config_(config) {
  config_["model_type"] = model_type;
  config_["architectures"] = Json::array({architecture});
}

nn::ParamId FamilyBase::matrix(const std::string& name, int64_t rows, int64_t columns, double std,
                               std::vector<std::string> aliases, SplitRule split) {
  nn::Parameter p{name, {rows, columns}, nn::Init::kNormal, std, true, true, {}};
  p.aliases = std::move(aliases);
  p.split = std::move(split);
  return parameters_.add(std::move(p));
}

nn::ParamId FamilyBase::output_matrix(const std::string& name, int64_t rows, int64_t columns,
                                      double std, SplitRule split) {
  nn::Parameter p{name, {rows, columns}, nn::Init::kNormal, std, true, true, {}};
  p.may_be_tiled = true;
  p.split = std::move(split);
  return parameters_.add(std::move(p));
}

nn::ParamId FamilyBase::vector(const std::string& name, int64_t size, nn::Init init,
                               std::vector<std::string> aliases, SplitRule split) {
  nn::Parameter p{name, {size}, init, 0, false, true, {}};
  p.aliases = std::move(aliases);
  p.split = std::move(split);
  return parameters_.add(std::move(p));
}

FamilyBase::Projection FamilyBase::projection(const std::string& name, int64_t out, int64_t in,
                                              double std, bool bias, const SplitRule& split,
                                              int64_t expert) {
  nn::Parameter p{name + ".weight", {out, in}, nn::Init::kNormal, std, true, true, {}};
  p.projection = p.may_be_tiled = true;
  p.split = split;
  p.expert = expert;
  Projection made;
  made.weight = parameters_.add(std::move(p));
  if (!bias) return made;
  nn::Parameter b{name + ".bias", {out}, nn::Init::kZeros, 0, false, true, {}};
  b.split = split.of_bias();
  b.expert = expert;
  made.bias = parameters_.add(std::move(b));
  return made;
}

nn::ParamId FamilyBase::read_by_heads(const std::string& name, int64_t out, int64_t in, double std,
                                      SplitRule split) {
  nn::Parameter p{name + ".weight", {out, in}, nn::Init::kNormal, std, true, true, {}};
  p.projection = true;
  p.keeps_numbers = true;
  p.split = std::move(split);
  return parameters_.add(std::move(p));
}

nn::ParamId FamilyBase::router_bias(const std::string& name, int64_t experts) {
  nn::Parameter p{name, {experts}, nn::Init::kZeros, 0, false, false, {}};
  p.keeps_fp32 = true;
  return parameters_.add(std::move(p));
}

nn::FeedForward FamilyBase::gated_mlp(const std::string& prefix,
                                      const std::array<const char*, 3>& names,
                                      const MlpShape& shape, int64_t expert) {
  const SplitRule rows = SplitRule::rows().of_experts(shape.experts);
  const SplitRule columns = SplitRule::columns().of_experts(shape.experts);
  nn::FeedForward made;
  made.gate =
      projection(prefix + names[0], shape.inner, shape.width, shape.std, shape.bias, rows, expert);
  made.up =
      projection(prefix + names[1], shape.inner, shape.width, shape.std, shape.bias, rows, expert);
  made.down = projection(prefix + names[2], shape.width, shape.inner, shape.std, shape.bias,
                         columns, expert);
  return made;
}

FamilyBase::Projection FamilyBase::layer_norm(const std::string& name, int64_t width) {
  Projection made;
  made.weight = vector(name + ".weight", width, nn::Init::kOnes);
  made.bias = vector(name + ".bias", width, nn::Init::kZeros);
  return made;
}

Value FamilyBase::apply(Tape& tape, const Value& x, const Projection& p, ops::Activation kind) {
  if (const std::optional<ops::Gelu> gelu = gelu_of(kind)) {
    return nn::linear_gelu(tape, x, p, *gelu);
  }
  return nn::activation(tape, apply(tape, x, p), kind);
}

Value FamilyBase::mlp(Tape& tape, const Value& x, const Projection& up, const Projection& down,
                      ops::Activation kind) {
  if (const std::optional<ops::Gelu> gelu = gelu_of(kind)) {
    return nn::linear_gelu_linear(tape, x, up, down, *gelu);
  }
  return apply(tape, apply(tape, x, up, kind), down);
}

void check_heads(const ConfigReader& read, int64_t heads, int64_t kv_heads, int64_t head_size) {
  DS_CHECK(heads % kv_heads == 0, Code::kConfig, read.where(), ": num_key_value_heads ", kv_heads,
           " does not divide num_attention_heads ", heads);
  DS_CHECK(head_size <= 256, Code::kUnsupported, read.where(), ": heads of ", head_size,
           " channels are not available; at most 256 are");
}

}  // namespace ds::models
