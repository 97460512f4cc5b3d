// What the layers report to a profile, against counts from closed formulas of whole models.
#include <gtest/gtest.h>

#include <random>

#include "attached_state.h"
#include "fresh_seed.h"
#include "models/adapters.h"
#include "models/inputs.h"
#include "models/lora.h"
#include "models/model.h"
#include "nn/loss.h"
#include "nn/profile.h"
#include "observe/module_profile.h"

namespace ds {
namespace {

using models::Model;

constexpr int64_t kBatch = 3, kLength = 11;
constexpr size_t kForward = static_cast<size_t>(ProfilePhase::kForward);
constexpr size_t kBackward = static_cast<size_t>(ProfilePhase::kBackward);
constexpr size_t kRecompute = static_cast<size_t>(ProfilePhase::kRecompute);

Json gpt2_config() {
  return {{"model_type", "gpt2"}, {"vocab_size", 61}, {"n_positions", 32},
          {"n_embd", 24},         {"n_layer", 2},     {"n_head", 3},
          {"resid_pdrop", 0},     {"embd_pdrop", 0},  {"attn_pdrop", 0}};
}
Json llama_config() {
  return {
      {"model_type", "llama"},       {"vocab_size", 53},         {"max_position_embeddings", 64},
      {"hidden_size", 24},           {"intermediate_size", 40},  {"num_hidden_layers", 3},
      {"num_attention_heads", 4},    {"num_key_value_heads", 2}, {"head_dim", 8},
      {"tie_word_embeddings", false}};
}

struct Outcome {
  std::vector<ProfiledModule> rows;
  double seconds = 0;
  const PhaseSums& total() const { return rows.front().sums; }
  const ProfiledModule& at(const std::string& path) const {
    for (const ProfiledModule& row : rows) {
      if (row.path == path) return row;
    }
    throw std::runtime_error("no module " + path);
  }
};

// One forward and backward over random tokens.
Outcome run(Model& model, const models::Recompute& recompute = {}, bool profiled = true) {
  const OpContext ctx = model.context();
  std::mt19937 random(7);
  models::Batch batch;
  batch.ids = Tensor::empty(ctx.device, DType::kInt32, {kBatch, kLength}, MemoryTag::kOther);
  Tensor labels = Tensor::empty(ctx.device, DType::kInt32, {kBatch, kLength}, MemoryTag::kOther);
  for (int64_t i = 0; i < kBatch * kLength; ++i) {
    batch.ids.data<int32_t>()[i] = static_cast<int32_t>(random() % 50);
    labels.data<int32_t>()[i] = static_cast<int32_t>(random() % 50);
  }
  batch.position_ids = models::position_ids(ctx, kBatch, kLength, 0);
  train_state(model).gradients().allocate();
  ModuleProfile profile;
  for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    profile.add_parameter(model.parameters()[id].name, model.parameters()[id].shape.elements());
  }
  nn::TapeOptions options;
  if (profiled) options.profile = &profile;
  const double began = steady_seconds();
  {
    nn::Tape tape(ctx, train_state(model).weights(), &train_state(model).gradients(), options);
    models::ForwardOptions forward;
    forward.recompute = recompute;
    const nn::Value logits = model.architecture().logits(tape, batch, forward);
    int64_t counted = 0;
    const nn::Value loss =
        nn::cross_entropy(tape, logits, labels, model.architecture().info().outputs(), counted);
    Tensor one = ctx.workspace(DType::kFloat32, {});
    *one.data<float>() = 1;
    loss.slot->add(ctx, one, true);
    tape.backward();
  }
  Outcome out{profile.modules(), steady_seconds() - began};
  model.detach_engine(ctx);
  return out;
}

// Products of queries with keys and of probabilities with values below the diagonal.
int64_t attention_macs(int64_t layers, int64_t heads, int64_t head_size) {
  return layers * kBatch * heads * (kLength * (kLength + 1) / 2) * 2 * head_size;
}

TEST(ModelProfile, Gpt2CountsAreTheFormula) {
  const auto model = Model::create(gpt2_config(), 1);
  const Outcome r = run(*model);
  constexpr int64_t w = 24, layers = 2, vocab = 61, tokens = kBatch * kLength;
  const int64_t matrices = layers * 12 * w * w + vocab * w;
  const int64_t attention = attention_macs(layers, 3, 8);
  const PhaseTotals &fwd = r.total()[kForward], &bwd = r.total()[kBackward];
  EXPECT_EQ(fwd.work.macs, tokens * matrices + attention);
  // 6 * N * tokens, and the attention likewise twice in backward.
  EXPECT_EQ(2 * (fwd.work.macs + bwd.work.macs), 6 * matrices * tokens + 6 * attention);
  // Embedding sum; the first norm, then norms that also add; GELU; loss.
  const int64_t n = tokens * w;
  const int64_t elements = n + 5 * n + 2 * layers * 6 * n + layers * 4 * n + tokens * vocab;
  EXPECT_EQ(fwd.work.flops - 2 * fwd.work.macs, elements);
  EXPECT_EQ(r.total()[kRecompute].calls, 0);
  EXPECT_EQ(r.rows.front().parameters, model->parameters().elements());
  EXPECT_EQ(r.at("h.1.mlp.c_fc").sums[kForward].work.macs, tokens * 4 * w * w);
  // Attention itself has no parameters: it belongs to the module of its projections.
  EXPECT_EQ(r.at("h.0.attn").sums[kForward].work.macs, tokens * 4 * w * w + attention / layers);
  // The tied head is not part of the embedding.
  EXPECT_EQ(r.at("lm_head").sums[kForward].work.macs, tokens * vocab * w);
  EXPECT_EQ(r.at("lm_head").parameters, 0);
  EXPECT_EQ(r.at("wte").parameters, vocab * w);
}

TEST(ModelProfile, LlamaCountsAreTheFormula) {
  const auto model = Model::create(llama_config(), 1);
  const Outcome r = run(*model);
  constexpr int64_t w = 24, q = 32, kv = 16, inner = 40, layers = 3, vocab = 53;
  constexpr int64_t tokens = kBatch * kLength;
  const int64_t matrices = layers * (2 * w * q + 2 * w * kv + 3 * w * inner) + vocab * w;
  const int64_t attention = attention_macs(layers, 4, 8);
  const PhaseTotals &fwd = r.total()[kForward], &bwd = r.total()[kBackward];
  EXPECT_EQ(fwd.work.macs, tokens * matrices + attention);
  EXPECT_EQ(2 * (fwd.work.macs + bwd.work.macs), 6 * matrices * tokens + 6 * attention);
  // Norms, rotary of queries and keys, gate times activation, loss.
  const int64_t n = tokens * w;
  const int64_t elements = 4 * n + 2 * layers * 5 * n + layers * 3 * tokens * (q + kv) +
                           layers * 2 * tokens * inner + tokens * vocab;
  EXPECT_EQ(fwd.work.flops - 2 * fwd.work.macs, elements);
  EXPECT_EQ(r.at("layers.2.mlp").sums[kForward].work.flops,
            2 * 3 * tokens * w * inner + 2 * tokens * inner);
}

TEST(ModelProfile, GptNeoxCountsAreTheFormula) {
  const auto model = Model::create({{"model_type", "gpt_neox"},
                                    {"vocab_size", 59},
                                    {"max_position_embeddings", 32},
                                    {"hidden_size", 24},
                                    {"intermediate_size", 56},
                                    {"num_hidden_layers", 2},
                                    {"num_attention_heads", 3},
                                    {"tie_word_embeddings", false}},
                                   1);
  const Outcome r = run(*model);
  constexpr int64_t w = 24, inner = 56, layers = 2, vocab = 59, tokens = kBatch * kLength;
  const int64_t matrices = layers * (4 * w * w + 2 * w * inner) + vocab * w;
  const int64_t attention = attention_macs(layers, 3, 8);
  const PhaseTotals &fwd = r.total()[kForward], &bwd = r.total()[kBackward];
  EXPECT_EQ(fwd.work.macs, tokens * matrices + attention);
  EXPECT_EQ(2 * (fwd.work.macs + bwd.work.macs), 6 * matrices * tokens + 6 * attention);
}

// Every token sees every other one; the head has a layer of its own before the vocabulary.
TEST(ModelProfile, BertCountsAreTheFormula) {
  const auto model = Model::create({{"model_type", "bert"},
                                    {"architectures", Json::array({"BertForMaskedLM"})},
                                    {"vocab_size", 57},
                                    {"max_position_embeddings", 32},
                                    {"hidden_size", 24},
                                    {"intermediate_size", 40},
                                    {"num_hidden_layers", 2},
                                    {"num_attention_heads", 3},
                                    {"hidden_dropout_prob", 0},
                                    {"attention_probs_dropout_prob", 0}},
                                   1);
  const Outcome r = run(*model);
  constexpr int64_t w = 24, inner = 40, layers = 2, vocab = 57, tokens = kBatch * kLength;
  const int64_t matrices = layers * (4 * w * w + 2 * w * inner) + w * w + vocab * w;
  const int64_t attention = layers * kBatch * 3 * (kLength * kLength) * 2 * 8;
  const PhaseTotals &fwd = r.total()[kForward], &bwd = r.total()[kBackward];
  EXPECT_EQ(fwd.work.macs, tokens * matrices + attention);
  EXPECT_EQ(2 * (fwd.work.macs + bwd.work.macs), 6 * matrices * tokens + 6 * attention);
}

TEST(ModelProfile, TreeAddsUpAndTimesFitIntoTheWallClock) {
  const auto model = Model::create(gpt2_config(), 1);
  for (const int64_t segments : {0, 1}) {
    const Outcome r = run(*model, {.segments = segments});
    double seconds = 0;
    for (size_t p = 0; p < kProfilePhases; ++p) {
      PhaseTotals own;
      std::vector<PhaseTotals> below(r.rows.size());
      for (const ProfiledModule& row : r.rows) {
        for (const auto& [name, sums] : row.operators) own += sums[p];
        if (row.parent >= 0) below[static_cast<size_t>(row.parent)] += row.sums[p];
      }
      for (size_t i = 0; i < r.rows.size(); ++i) {
        for (const auto& [name, sums] : r.rows[i].operators) below[i] += sums[p];
        EXPECT_EQ(below[i].work.macs, r.rows[i].sums[p].work.macs) << r.rows[i].path;
        EXPECT_EQ(below[i].work.flops, r.rows[i].sums[p].work.flops) << r.rows[i].path;
        EXPECT_EQ(below[i].calls, r.rows[i].sums[p].calls) << r.rows[i].path;
        EXPECT_NEAR(below[i].seconds, r.rows[i].sums[p].seconds, 1e-9) << r.rows[i].path;
      }
      EXPECT_EQ(own.work.flops, r.total()[p].work.flops);
      seconds += own.seconds;
    }
    EXPECT_GT(seconds, 0);
    EXPECT_LE(seconds, r.seconds);
  }
}

TEST(ModelProfile, RecomputationIsCountedByItself) {
  const auto model = Model::create(gpt2_config(), 1);
  const Outcome plain = run(*model), again = run(*model, {.segments = 2});
  EXPECT_EQ(again.total()[kForward].work.flops, plain.total()[kForward].work.flops);
  EXPECT_EQ(again.total()[kBackward].work.flops, plain.total()[kBackward].work.flops);
  // The blocks run again, the head and the embedding do not.
  EXPECT_EQ(again.total()[kRecompute].work.flops, plain.at("h").sums[kForward].work.flops);
  EXPECT_EQ(again.at("lm_head").sums[kRecompute].calls, 0);
  EXPECT_GT(again.total()[kRecompute].seconds, 0);
  // Every second block of two: the last one.
  const Outcome one = run(*model, {.every = 2});
  EXPECT_EQ(one.total()[kRecompute].work.flops, plain.at("h.1").sums[kForward].work.flops);
  EXPECT_EQ(one.at("h.0").sums[kRecompute].calls, 0);
  EXPECT_EQ(one.total()[kBackward].work.flops, plain.total()[kBackward].work.flops);
}

TEST(ModelProfile, AdaptersAndFrozenWeights) {
  const auto model = Model::create(llama_config(), 1);
  const Outcome plain = run(*model);
  models::LoraOptions options;
  options.r = 4;
  options.target_modules = {"q_proj", "down_proj"};
  models::add_lora(*model, options);
  const Outcome r = run(*model);
  constexpr int64_t w = 24, q = 32, inner = 40, layers = 3, tokens = kBatch * kLength;
  const int64_t adapters = layers * tokens * 4 * (w + q + inner + w);
  const int64_t matrices = plain.total()[kForward].work.macs - attention_macs(layers, 4, 8);
  EXPECT_EQ(r.total()[kForward].work.macs, plain.total()[kForward].work.macs + adapters);
  // Frozen weights need no gradient of their own; adapters need both.
  EXPECT_EQ(r.total()[kBackward].work.macs,
            plain.total()[kBackward].work.macs - matrices + 2 * adapters);
}

TEST(ModelProfile, WithoutAProfileNothingIsReported) {
  const auto model = Model::create(gpt2_config(), 1);
  const Outcome r = run(*model, {}, false);
  for (const ProfiledModule& row : r.rows) EXPECT_TRUE(row.operators.empty());
  EXPECT_GT(r.rows.size(), 5u);  // the parameters were
}

TEST(VisiblePairs, AreThoseThatAnEnumerationFinds) {
  const auto seed = ds::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto device = make_cpu_device();
  for (int trial = 0; trial < 200; ++trial) {
    nn::VisiblePairs p;
    p.batch = 1 + random() % 3;
    p.queries = 1 + random() % 12;
    p.keys = trial % 3 == 0 ? 1 + random() % 20 : p.queries;
    p.causal = random() % 2 == 0;
    p.window = random() % 2 == 0 ? 0 : 1 + random() % 9;
    if (random() % 2 == 0) {
      p.key_mask = Tensor::empty(device, DType::kUInt8, {p.batch, p.keys}, MemoryTag::kOther);
      for (int64_t i = 0; i < p.key_mask.elements(); ++i) {
        p.key_mask.data<uint8_t>()[i] = random() % 3 != 0;
      }
    }
    if (p.keys == p.queries && random() % 2 == 0) {
      p.segments = Tensor::empty(device, DType::kInt32, {p.batch, p.keys}, MemoryTag::kOther);
      for (int64_t i = 0; i < p.segments.elements(); ++i) {
        p.segments.data<int32_t>()[i] = static_cast<int32_t>(random() % 3);
      }
    }
    int64_t expected = 0;
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t i = 0; i < p.queries; ++i) {
        for (int64_t j = 0; j < p.keys; ++j) {
          const int64_t ahead = j - (i + p.keys - p.queries);
          if (p.causal && ahead > 0) continue;
          if (p.window > 0 && std::abs(ahead) >= p.window) continue;
          if (p.key_mask && p.key_mask.data<uint8_t>()[b * p.keys + j] == 0) continue;
          if (p.segments && p.segments.data<int32_t>()[b * p.keys + i] !=
                                p.segments.data<int32_t>()[b * p.keys + j]) {
            continue;
          }
          ++expected;
        }
      }
    }
    EXPECT_EQ(nn::count_visible_pairs(p), expected)
        << "queries " << p.queries << " keys " << p.keys << " causal " << p.causal << " window "
        << p.window;
  }
}

}  // namespace
}  // namespace ds
