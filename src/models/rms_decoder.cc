#include "models/rms_decoder.h"

namespace ds::models {

using nn::Tape;
using nn::Value;

RmsDecoder::RmsDecoder(const Json& config, const char* model_type, const char* architecture,
                       const Ends& ends)
    : FamilyBase(config, model_type, architecture), ends_(ends), tables_(ends.rotary) {
  config_["tie_word_embeddings"] = ends_.tied;
  embedding_ =
      matrix("embed_tokens.weight", ends_.vocab_size, ends_.width, ends_.std,
             ends_.tied ? std::vector<std::string>{"lm_head.weight"} : std::vector<std::string>(),
             SplitRule::vocabulary());
  info_.vocab_size = ends_.vocab_size;
  info_.max_positions = rotary_positions(ends_.rotary);
  info_.angles_follow_length = ends_.rotary.scaling == RotaryScaling::kDynamic;
}

void RmsDecoder::add_head() {
  norm_ = vector("norm.weight", ends_.width, nn::Init::kOnes);
  head_ = ends_.tied ? embedding_
                     : output_matrix("lm_head.weight", ends_.vocab_size, ends_.width, ends_.std,
                                     SplitRule::vocabulary());
  info_.output = head_;
  if (!ends_.tied) info_.lookup = embedding_;
}

ExternalName RmsDecoder::external_name(nn::ParamId id) const {
  const std::string& name = parameters_[id].name;
  return {name == "lm_head.weight" ? name : external_prefix() + name};
}

ResidualStream RmsDecoder::run_embedding(Tape& tape, const PassContext& pass) const {
  return {nn::embedding(tape, pass.batch.ids, embedding_, Tensor(), nn::kNoParam, ends_.padding),
          {}};
}

Value RmsDecoder::run_last_norm(Tape& tape, const ResidualStream& in) const {
  return norm(tape, in, norm_).y;
}

Value RmsDecoder::run_head(Tape& tape, const PassContext& pass, const Value& hidden) const {
  return vocabulary(tape, hidden, {head_, nn::kNoParam}, pass.options);
}

}  // namespace ds::models
