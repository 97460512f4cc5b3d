// What model families share: adding parameters, layers that most of them have, and the plumbing of
// the Architecture interface.
#pragma once

#include <array>

#include "models/architecture.h"
#include "models/config_reader.h"
#include "nn/layers.h"
#include "nn/moe.h"

namespace ds::models {

// What layers of experts get of the pass.
inline nn::MoePass moe_pass(const PassContext& pass) {
  return {pass.batch.key_mask, pass.options.routers, pass.options.expert_ranks,
          pass.options.for_others};
}

class FamilyBase : public Architecture {
 public:
  const nn::ParameterSet& parameters() const override { return parameters_; }
  const ArchitectureInfo& info() const override { return info_; }
  const Json& config() const override { return config_; }
  bool ignorable_external(const std::string&) const override { return false; }

 protected:
  using Projection = nn::Projection;

  FamilyBase(const Json& config, const char* model_type, const char* architecture);

  // Matrices start normal and decay; vectors do neither. `split`: how ranks may share it.
  nn::ParamId matrix(const std::string& name, int64_t rows, int64_t columns, double std,
                     std::vector<std::string> aliases = {}, SplitRule split = {});
  // Of a product that makes the outputs, and of nothing else.
  nn::ParamId output_matrix(const std::string& name, int64_t rows, int64_t columns, double std,
                            SplitRule split = {});
  nn::ParamId vector(const std::string& name, int64_t size, nn::Init init,
                     std::vector<std::string> aliases = {}, SplitRule split = {});
  // NAME.weight [out, in] and, with `bias`, NAME.bias [out]; the weight may carry an adapter.
  // `split` is the weight's; with experts in it the layer is that of number `expert`.
  Projection projection(const std::string& name, int64_t out, int64_t in, double std, bool bias,
                        const SplitRule& split = {}, int64_t expert = -1);
  // A weight NAME.weight that is multiplied head by head, too: in one piece, and never in codes.
  nn::ParamId read_by_heads(const std::string& name, int64_t out, int64_t in, double std,
                            SplitRule split);
  // What is added to a router's scores while experts are chosen: no gradient moves it.
  nn::ParamId router_bias(const std::string& name, int64_t experts);
  // A gated MLP of so many inner channels.
  struct MlpShape {
    int64_t width = 0;
    int64_t inner = 0;
    double std = 0;
    bool bias = false;
    int64_t experts = 0;  // of the layer, where it is one of several
  };
  // The three projections are PREFIX and their names: gate, up and down.
  nn::FeedForward gated_mlp(const std::string& prefix, const std::array<const char*, 3>& names,
                            const MlpShape& shape, int64_t expert = -1);
  // NAME.weight and NAME.bias of a layer norm.
  Projection layer_norm(const std::string& name, int64_t width);

  static nn::Value apply(nn::Tape& tape, const nn::Value& x, const Projection& p) {
    return nn::linear(tape, x, p.weight, p.bias);
  }
  // The product that makes a language model's logits.
  static nn::Value vocabulary(nn::Tape& tape, const nn::Value& x, const Projection& p,
                              const ForwardOptions& options) {
    return options.padded_logits ? nn::linear_padded(tape, x, p.weight, p.bias) : apply(tape, x, p);
  }
  // f(x w^T + b), the bias fused where the activation has such a kernel.
  static nn::Value apply(nn::Tape& tape, const nn::Value& x, const Projection& p,
                         ops::Activation kind);
  // down(f(up(x))), the MLP of a block.
  static nn::Value mlp(nn::Tape& tape, const nn::Value& x, const Projection& up,
                       const Projection& down, ops::Activation kind);
  // Queries or keys with their positions; while decoding, attention() turns them on their way to
  // the attention state, by what turn_on_the_way() gives it.
  static nn::Value rotated(nn::Tape& tape, const nn::Value& x, int64_t heads,
                           const PassContext& pass) {
    if (pass.options.state != nullptr) return x;
    return nn::rotary(tape, x, heads, pass.batch.position_ids, pass.rotary);
  }
  static void turn_on_the_way(nn::Attention& spec, const PassContext& pass) {
    if (pass.options.state == nullptr) return;
    spec.table = pass.rotary;
    spec.position_ids = pass.batch.position_ids;
  }
  static nn::NormOutput normalise(nn::Tape& tape, const ResidualStream& s, const Projection& p,
                                  double eps) {
    return nn::layer_norm(tape, s.x, s.residual, p.weight, p.bias, static_cast<float>(eps));
  }

  Json config_;
  ArchitectureInfo info_;
  nn::ParameterSet parameters_;
};

// Checks that heads divide the width and that the kernels take heads of this size.
void check_heads(const ConfigReader& read, int64_t heads, int64_t kv_heads, int64_t head_size);

}  // namespace ds::models
