#include "models/bert.h"

#include <algorithm>
#include <cmath>

#include "models/family.h"

namespace ds::models {
namespace {

using nn::ParamId;
using nn::Tape;
using nn::Value;

struct BertConfig {
  int64_t vocab_size = 30522;
  int64_t width = 768;
  int64_t inner = 3072;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t positions = 512;
  int64_t token_types = 2;
  int64_t classes = 2;
  ops::Activation activation = ops::Activation::kGeluErf;
  double norm_epsilon = 1e-12;
  double initializer_range = 0.02;
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  double classifier_dropout = 0.1;
  bool tied = true;
  int64_t padding = 0;  // row of the embedding without a gradient, -1 = none
  nn::LossKind loss = nn::LossKind::kCrossEntropy;  // of the classifier
};

// As Transformers reads problem_type, but for what it leaves to the type of the labels.
nn::LossKind read_loss(const ConfigReader& read, int64_t classes) {
  const std::string type = read.text("problem_type", "");
  if (type == "regression" || (type.empty() && classes == 1)) return nn::LossKind::kSquaredError;
  if (type == "multi_label_classification") return nn::LossKind::kBinaryCrossEntropy;
  DS_CHECK(type.empty() || type == "single_label_classification", Code::kUnsupported, read.where(),
           ": problem_type ", printable(type),
           " is not available; these are: regression, single_label_classification, "
           "multi_label_classification");
  return nn::LossKind::kCrossEntropy;
}

BertConfig parse(const Json& config) {
  const ConfigReader read(config);
  read.ignore_common();
  // Of heads that this version does not build, or of programs around the model.
  read.ignore({"directionality", "pooler_fc_size", "pooler_num_attention_heads",
               "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"});
  BertConfig c;
  c.vocab_size = read.count("vocab_size", c.vocab_size, int64_t{1} << 30);
  c.width = read.count("hidden_size", c.width, int64_t{1} << 20);
  c.inner = read.count("intermediate_size", c.inner, int64_t{1} << 22);
  c.layers = read.count("num_hidden_layers", c.layers, 10000);
  c.heads = read.count("num_attention_heads", c.heads, int64_t{1} << 16);
  DS_CHECK(c.width % c.heads == 0, Code::kConfig, read.where(), ": hidden_size ", c.width,
           " is not a multiple of num_attention_heads ", c.heads);
  check_heads(read, c.heads, c.heads, c.width / c.heads);
  c.positions = read.count("max_position_embeddings", c.positions, int64_t{1} << 24);
  c.token_types = read.count("type_vocab_size", c.token_types, 1 << 16);
  c.activation = read_activation(read, "hidden_act", "gelu");
  c.norm_epsilon = read.number("layer_norm_eps", c.norm_epsilon, 0, 1);
  c.initializer_range = read.number("initializer_range", c.initializer_range, 0, 1e3);
  c.hidden_dropout = read.number("hidden_dropout_prob", c.hidden_dropout, 0, 1);
  c.attention_dropout = read.number("attention_probs_dropout_prob", c.attention_dropout, 0, 1);
  c.classifier_dropout = read.number("classifier_dropout", c.hidden_dropout, 0, 1);
  c.tied = read.flag("tie_word_embeddings", true);
  c.padding = read.padding_row(c.vocab_size, 0);
  const Json* labels = read.object("id2label");
  c.classes = labels == nullptr ? 2 : static_cast<int64_t>(labels->size());
  c.classes = read.count("num_labels", c.classes, 1 << 20);
  DS_CHECK(c.classes >= 1, Code::kConfig, read.where(), ": id2label is empty");
  const std::string position = read.text("position_embedding_type", "absolute");
  DS_CHECK(position == "absolute", Code::kUnsupported, read.where(), ": position_embedding_type ",
           printable(position), " is not available; absolute is");
  read.require("is_decoder", false);
  c.loss = read_loss(read, c.classes);
  read.finish();
  return c;
}

class Bert : public FamilyBase {
 public:
  Bert(const Json& config, Head head, const char* architecture, bool order = false)
      : FamilyBase(config, "bert", architecture), c_(parse(config)), order_(order) {
    config_["tie_word_embeddings"] = c_.tied;
    const double std = c_.initializer_range;
    const int64_t w = c_.width;
    const bool tied = head == Head::kMaskedLm && c_.tied;
    const std::string decoder = "cls.predictions.decoder.weight";
    words_ = matrix("embeddings.word_embeddings.weight", c_.vocab_size, w, std,
                    tied ? std::vector<std::string>{decoder} : std::vector<std::string>(),
                    SplitRule::vocabulary());
    const SplitRule::Section heads = {c_.heads, w / c_.heads};
    const SplitRule by_head = SplitRule::head_rows({heads});
    positions_ = matrix("embeddings.position_embeddings.weight", c_.positions, w, std);
    types_ = matrix("embeddings.token_type_embeddings.weight", c_.token_types, w, std);
    norm_ = layer_norm("embeddings.LayerNorm", w);
    for (int64_t i = 0; i < c_.layers; ++i) {
      const std::string p = "encoder.layer." + std::to_string(i) + ".";
      Block b;
      b.q = projection(p + "attention.self.query", w, w, std, true, by_head);
      b.k = projection(p + "attention.self.key", w, w, std, true, by_head);
      b.v = projection(p + "attention.self.value", w, w, std, true, by_head);
      b.out = projection(p + "attention.output.dense", w, w, std, true,
                         SplitRule::head_columns({heads}));
      b.norm1 = layer_norm(p + "attention.output.LayerNorm", w);
      b.up = projection(p + "intermediate.dense", c_.inner, w, std, true, SplitRule::rows());
      b.down = projection(p + "output.dense", w, c_.inner, std, true, SplitRule::columns());
      b.norm2 = layer_norm(p + "output.LayerNorm", w);
      blocks_.push_back(b);
    }
    if (head != Head::kMaskedLm) pooler_ = projection("pooler.dense", w, w, std, true);
    if (head == Head::kMaskedLm) {
      transform_ = projection("cls.predictions.transform.dense", w, w, std, true);
      transform_norm_ = layer_norm("cls.predictions.transform.LayerNorm", w);
      head_.weight =
          tied ? words_ : output_matrix(decoder, c_.vocab_size, w, std, SplitRule::vocabulary());
      head_.bias = vector("cls.predictions.bias", c_.vocab_size, nn::Init::kZeros,
                          {"cls.predictions.decoder.bias"}, SplitRule::vocabulary());
    }
    if (order) {
      head_.weight = output_matrix("cls.seq_relationship.weight", 2, w, std);
      head_.bias = vector("cls.seq_relationship.bias", 2, nn::Init::kZeros);
      info_.classes = 2;
    } else if (head == Head::kClassification) {
      head_.weight = output_matrix("classifier.weight", c_.classes, w, std);
      head_.bias = vector("classifier.bias", c_.classes, nn::Init::kZeros);
      DS_CHECK(c_.classes > 1 || c_.loss != nn::LossKind::kCrossEntropy, Code::kConfig,
               "model config: problem_type single_label_classification over one class has loss 0 "
               "whatever the weights; for numbers take regression");
      info_.classes = c_.classes;
      info_.loss = c_.loss;
    }
    if (head_.weight != words_) info_.lookup = words_;
    info_.vocab_size = c_.vocab_size;
    info_.max_positions = c_.positions;
    info_.layers = static_cast<int>(c_.layers);
    info_.kv_heads = c_.heads;
    info_.head_size = w / c_.heads;
    info_.head = head;
    info_.token_types = c_.token_types;
  }

  ExternalName external_name(ParamId id) const override {
    const std::string& name = parameters_[id].name;
    ExternalName out{is_head(name) || info_.head == Head::kNone ? name : external_prefix() + name};
    if (name == "cls.predictions.bias" && !c_.tied) {
      // Untied, the reference reads the decoder's own bias and leaves the other one unused.
      out = {"cls.predictions.decoder.bias", false, {name}};
    }
    // Names that conversions from the first release wrote.
    if (const size_t at = out.name.find("LayerNorm."); at != std::string::npos) {
      const std::string stem = out.name.substr(0, at + 10);
      out.also.push_back(stem + (out.name.ends_with("weight") ? "gamma" : "beta"));
    }
    return out;
  }
  std::string external_prefix() const override { return "bert."; }
  bool ignorable_external(const std::string& name) const override {
    if (name.ends_with("embeddings.position_ids")) return true;
    // Untied, the reference writes this one beside the decoder's own and does not read it.
    if (info_.head == Head::kMaskedLm && !c_.tied && name == "cls.predictions.bias") return true;
    // Parts of pretraining that this head leaves out.
    if (info_.head != Head::kMaskedLm) return name.starts_with("cls.");
    return name.find("pooler.dense.") != std::string::npos ||
           name.starts_with("cls.seq_relationship.");
  }
  bool of_head(ParamId id) const override {
    const std::string& name = parameters_[id].name;
    return is_head(name) || name.starts_with("pooler.");
  }

 private:
  struct Block {
    Projection q, k, v, out, norm1, up, down, norm2;
  };

  static bool is_head(const std::string& name) {
    return name.starts_with("cls.") || name.starts_with("classifier.");
  }

  ResidualStream run_embedding(Tape& tape, const PassContext& pass) const override {
    DS_CHECK(pass.options.state == nullptr && !pass.options.last_only, Code::kUnsupported,
             "BERT reads in both directions: it cannot continue a text");
    const Batch& batch = pass.batch;
    Tensor kinds = batch.token_types;
    if (!kinds) {
      kinds = tape.ctx().workspace(DType::kInt32, batch.ids.shape());
      Device& device = *tape.ctx().device;
      device.clear(kinds.raw(), kinds.bytes(), device.default_stream());
    }
    const Value words =
        nn::embedding(tape, batch.ids, words_, batch.position_ids, positions_, c_.padding);
    const Value types = nn::embedding(tape, kinds, types_, Tensor(), nn::kNoParam);
    const Value x = normalise(tape, {words, types}, norm_, c_.norm_epsilon).y;
    return {nn::dropout(tape, x, c_.hidden_dropout), {}};
  }

  ResidualStream run_block(Tape& tape, const PassContext& pass, int64_t index,
                           const ResidualStream& in) const override {
    const Value& x = in.x;
    const Block& b = blocks_[static_cast<size_t>(index)];
    nn::Attention spec;
    spec.heads = spec.kv_heads = c_.heads;
    spec.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(info_.head_size)));
    spec.dropout = c_.attention_dropout;
    spec.causal = false;
    spec.key_mask = pass.batch.key_mask;
    spec.segments = pass.batch.segments;
    const Value mixed =
        nn::attention(tape, apply(tape, x, b.q), apply(tape, x, b.k), apply(tape, x, b.v), spec);
    const Value out = nn::dropout(tape, apply(tape, mixed, b.out), c_.hidden_dropout);
    const Value y = normalise(tape, {out, x}, b.norm1, c_.norm_epsilon).y;
    const Value down =
        nn::dropout(tape, mlp(tape, y, b.up, b.down, c_.activation), c_.hidden_dropout);
    return {normalise(tape, {down, y}, b.norm2, c_.norm_epsilon).y, {}};
  }

  // Blocks end with their norm.
  Value run_last_norm(Tape&, const ResidualStream& in) const override { return in.x; }

  Value run_head(Tape& tape, const PassContext& pass, const Value& x) const override {
    if (info_.head == Head::kMaskedLm) {
      const Value y = apply(tape, x, transform_, c_.activation);
      const Value z = normalise(tape, {y, {}}, transform_norm_, c_.norm_epsilon).y;
      return vocabulary(tape, z, head_, pass.options);
    }
    const Value first = nn::select_position(tape, x, 0);
    const Value pooled = apply(tape, first, pooler_, ops::Activation::kTanh);
    if (order_) return apply(tape, pooled, head_);
    return apply(tape, nn::dropout(tape, pooled, c_.classifier_dropout), head_);
  }

  BertConfig c_;
  const bool order_;  // the head tells the order of two texts
  std::vector<Block> blocks_;
  Projection norm_, pooler_, transform_, transform_norm_, head_;
  ParamId words_, positions_, types_;
};

}  // namespace

std::unique_ptr<Architecture> make_bert(const Json& config) {
  return std::make_unique<Bert>(config, Head::kNone, "BertModel");
}

std::unique_ptr<Architecture> make_bert_masked_lm(const Json& config) {
  return std::make_unique<Bert>(config, Head::kMaskedLm, "BertForMaskedLM");
}

std::unique_ptr<Architecture> make_bert_classifier(const Json& config) {
  return std::make_unique<Bert>(config, Head::kClassification, "BertForSequenceClassification");
}

std::unique_ptr<Architecture> make_bert_order(const Json& config) {
  return std::make_unique<Bert>(config, Head::kClassification, "BertForNextSentencePrediction",
                                true);
}

}  // namespace ds::models
