// What Llama's kin and DeepSeek's models share: an embedding, blocks with RMS norms and rotary
// positions, a last norm, and a head that may be the embedding; the names of Hugging Face's files.
#pragma once

#include "models/family.h"
#include "models/rotary_scaling.h"

namespace ds::models {

class RmsDecoder : public FamilyBase {
 public:
  ExternalName external_name(nn::ParamId id) const override;
  std::string external_prefix() const override { return "model."; }
  bool ignorable_external(const std::string& name) const override {
    return name.ends_with(".rotary_emb.inv_freq");
  }

 protected:
  // Names of a gated MLP's three projections.
  static constexpr std::array<const char*, 3> kMlpNames = {"gate_proj", "up_proj", "down_proj"};

  struct Ends {
    int64_t vocab_size = 0;
    int64_t width = 0;
    double std = 0;
    bool tied = false;
    int64_t padding = -1;  // row of the embedding without a gradient, -1 = none
    double norm_epsilon = 1e-6;
    RotaryConfig rotary;
  };
  RmsDecoder(const Json& config, const char* model_type, const char* architecture,
             const Ends& ends);
  // After the blocks' parameters.
  void add_head();

  nn::NormOutput norm(nn::Tape& tape, const ResidualStream& s, nn::ParamId gamma) const {
    return nn::rms_norm(tape, s.x, s.residual, gamma, static_cast<float>(ends_.norm_epsilon));
  }

 private:
  nn::RotaryTable rotary_table(const OpContext& ctx, const Batch& batch) const override {
    return tables_.rows(ctx, batch.position_ids, batch.positions);
  }
  ResidualStream run_embedding(nn::Tape& tape, const PassContext& pass) const override;
  nn::Value run_last_norm(nn::Tape& tape, const ResidualStream& in) const override;
  nn::Value run_head(nn::Tape& tape, const PassContext& pass,
                     const nn::Value& hidden) const override;

  Ends ends_;
  RotaryTables tables_;
  nn::ParamId embedding_, norm_ = nn::kNoParam, head_ = nn::kNoParam;
};

}  // namespace ds::models
