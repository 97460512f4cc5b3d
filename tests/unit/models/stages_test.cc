// A model cut into stages that are run by hand, as a pipeline will: each stage of a micro batch has
// its own tape, two micro batches are open at once, and activations and their gradients go from
// stage to stage by value. Losses and gradients are the whole model's, bit for bit, with dropout.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "attached_state.h"
#include "fresh_seed.h"
#include "support.h"

namespace ds::models::stages {
namespace {

using ds::testing::make_batch;
using ds::testing::matrix;
using ds::testing::random_texts;
using nn::GradientSlot;
using nn::Tape;
using nn::Value;

constexpr int64_t kLayers = 3;
constexpr int32_t kVocab = 31;
constexpr int64_t kSamples = 2;

struct Family {
  const char* name;
  const char* config;
};
constexpr Family kFamilies[] = {
    {"gpt2", R"({"model_type": "gpt2", "vocab_size": 31, "n_positions": 16, "n_embd": 24,
         "n_layer": 3, "n_head": 2, "resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2})"},
    {"gpt_neox", R"({"model_type": "gpt_neox", "vocab_size": 31, "hidden_size": 24,
         "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2,
         "max_position_embeddings": 16, "rotary_pct": 0.5, "hidden_dropout": 0.2,
         "attention_dropout": 0.2})"},
    {"llama", R"({"model_type": "llama", "vocab_size": 31, "hidden_size": 24,
         "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 16, "attention_dropout": 0.2})"},
    {"mixtral", R"({"model_type": "mixtral", "vocab_size": 31, "hidden_size": 24,
         "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 16, "attention_dropout": 0.2,
         "num_local_experts": 4, "router_jitter_noise": 0.1})"},
    {"deepseek_v3", R"({"model_type": "deepseek_v3", "vocab_size": 31, "hidden_size": 24,
         "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
         "max_position_embeddings": 16, "attention_dropout": 0.2, "q_lora_rank": 10,
         "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
         "moe_intermediate_size": 12, "first_k_dense_replace": 1, "n_routed_experts": 8,
         "n_group": 4, "topk_group": 2, "num_experts_per_tok": 2})"},
    {"gpt_moe", R"({"model_type": "gpt_moe", "vocab_size": 31, "n_positions": 16, "n_embd": 24,
         "n_layer": 3, "n_head": 2, "resid_pdrop": 0.2, "num_experts": 4, "expert_interval": 1,
         "moe_top_k": 2, "moe_min_capacity": 1, "moe_noisy_gate_policy": "Jitter"})"},
    {"bert", R"({"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 31,
         "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
         "num_attention_heads": 2, "max_position_embeddings": 16})"}};

struct Data {
  Batch batch;
  Tensor labels;
};

// A copy that belongs to another tape.
Value received(const OpContext& ctx, const Value& sent) {
  if (!sent) return {};
  Tensor data = ctx.workspace(sent.data.dtype(), sent.data.shape());
  std::memcpy(data.raw(), sent.data.raw(), static_cast<size_t>(data.bytes()));
  return {data, std::make_shared<GradientSlot>()};
}

// What the passes of a step have in common.
struct World {
  std::shared_ptr<Model> model;
  ForwardOptions options;
  ThreadPool pool{2};
  OpContext ctx{model->device(), &pool};

  nn::TapeOptions tape_options(int64_t micro_batch) const {
    nn::TapeOptions tape;
    tape.seed = 11;
    tape.step = 4;
    tape.first_sample = static_cast<uint32_t>(micro_batch * kSamples);
    return tape;
  }
  nn::GradientSink* sink() const { return &train_state(*model).gradients(); }
};

float start_loss(const World& world, Tape& tape, const Value& logits, const Tensor& labels,
                 std::shared_ptr<GradientSlot>& slot) {
  int64_t counted = 0;
  const Value loss = nn::cross_entropy(tape, logits, labels, kVocab, counted);
  slot = loss.slot;
  Tensor one = world.ctx.workspace(DType::kFloat32, {});
  *one.data<float>() = 1;
  slot->add(world.ctx, one, true);
  return *loss.data.data<float>();
}

// A micro batch in two stages, cut before block `cut`.
class Staged {
 public:
  Staged(World& world, const Data& data, int64_t micro_batch, int64_t cut)
      : world_(world),
        data_(data),
        cut_(cut),
        first_(world.ctx, train_state(*world.model).weights(), world.sink(),
               world.tape_options(micro_batch)),
        second_(world.ctx, train_state(*world.model).weights(), world.sink(),
                world.tape_options(micro_batch)) {}

  float forward() {
    const Architecture& model = world_.model->architecture();
    {
      const PassContext pass = model.begin_pass(world_.ctx, data_.batch, world_.options);
      sent_ = model.blocks(first_, pass, {0, cut_}, model.embed(first_, pass));
    }
    received_ = {received(world_.ctx, sent_.x), received(world_.ctx, sent_.residual)};
    const PassContext pass = model.begin_pass(world_.ctx, data_.batch, world_.options);
    const Value logits =
        model.head(second_, pass, model.blocks(second_, pass, {cut_, kLayers}, received_));
    return start_loss(world_, second_, logits, data_.labels, loss_);
  }

  void backward() {
    second_.backward();
    const auto send = [&](const Value& from, const Value& to) {
      if (from && *from.slot) to.slot->add(world_.ctx, from.slot->gradient(), false);
    };
    send(received_.x, sent_.x);
    send(received_.residual, sent_.residual);
    first_.backward();
  }

 private:
  World& world_;
  const Data& data_;
  const int64_t cut_;
  Tape first_, second_;
  ResidualStream sent_, received_;
  std::shared_ptr<GradientSlot> loss_;
};

float whole_pass(World& world, const Data& data, int64_t micro_batch) {
  Tape tape(world.ctx, train_state(*world.model).weights(), world.sink(),
            world.tape_options(micro_batch));
  const Value logits = world.model->architecture().logits(tape, data.batch, world.options);
  std::shared_ptr<GradientSlot> slot;
  const float loss = start_loss(world, tape, logits, data.labels, slot);
  tape.backward();
  return loss;
}

std::vector<std::vector<float>> gradients(const World& world) {
  Model& model = *world.model;
  train_state(model).gradients().materialize(world.ctx);
  std::vector<std::vector<float>> out;
  for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    if (!model.parameters()[id].trainable) continue;  // a router's bias
    out.push_back(ds::testing::values(train_state(model).gradients().view(id)));
  }
  return out;
}

class Stages : public ::testing::TestWithParam<Family> {};

TEST_P(Stages, WithTwoOpenMicroBatchesGiveTheWholeModelsBits) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(str_cat("seed ", seed));
  std::mt19937_64 random(seed);
  World world{Model::create(parse_json(GetParam().config, GetParam().name, Code::kConfig), seed),
              {}};
  ds::testing::disturb(*world.model, random);
  std::vector<Data> data;
  for (int i = 0; i < 2; ++i) {
    const auto texts = random_texts(random, kSamples, 9, kVocab, true);
    data.push_back({make_batch(*world.model, world.ctx, texts),
                    matrix(*world.model, DType::kInt32, texts.labels)});
  }
  for (const bool second_first : {false, true}) {
    const std::array<size_t, 2> order = {second_first ? 1u : 0u, second_first ? 0u : 1u};
    world.options.recompute = {};
    train_state(*world.model).gradients().allocate();
    train_state(*world.model).gradients().clear(world.ctx);
    std::array<float, 2> losses{};
    for (const size_t i : order) losses[i] = whole_pass(world, data[i], static_cast<int64_t>(i));
    EXPECT_NE(losses[0], losses[1]);
    const auto expected = gradients(world);
    for (int64_t cut = 0; cut <= kLayers; ++cut) {
      for (const Recompute recompute : {Recompute{}, Recompute{2, 0}, Recompute{0, 2}}) {
        SCOPED_TRACE(str_cat("cut before block ", cut, ", segments ", recompute.segments,
                             ", every ", recompute.every, second_first ? ", second first" : ""));
        world.options.recompute = recompute;
        train_state(*world.model).gradients().clear(world.ctx);
        std::array<std::optional<Staged>, 2> passes;
        for (size_t i = 0; i < 2; ++i) {
          passes[i].emplace(world, data[i], static_cast<int64_t>(i), cut);
          EXPECT_EQ(passes[i]->forward(), losses[i]);
        }
        for (const size_t i : order) passes[i]->backward();
        EXPECT_EQ(gradients(world), expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Stages, ::testing::ValuesIn(kFamilies),
                         [](const auto& suite) { return std::string(suite.param.name); });

}  // namespace
}  // namespace ds::models::stages
