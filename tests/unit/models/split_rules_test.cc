// The split rules that model families declare: with two tensor ranks every parameter can be cut,
// layers come in pairs whose inner sizes agree, and what stays whole is known by name.
#include <gtest/gtest.h>

#include <regex>

#include "models/adapters.h"
#include "models/architecture.h"
#include "models/model.h"

namespace ds::models {
namespace {

struct Family {
  const char* name;
  Json config;
  const char* whole;  // pattern of the parameters that every rank has all of
};

std::ostream& operator<<(std::ostream& out, const Family& family) { return out << family.name; }

class FamilySplitRules : public ::testing::TestWithParam<Family> {};

TEST_P(FamilySplitRules, ShareEveryLayerBetweenTwoRanks) {
  const auto architecture = build_architecture(GetParam().config);
  const nn::ParameterSet& parameters = architecture->parameters();
  const MeshShape mesh(2, {.tensor = 2});
  const std::regex whole(GetParam().whole);
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    SCOPED_TRACE(p.name);
    const ShardSpec spec = nn::shard_spec(p, mesh, 1);
    EXPECT_EQ(!spec.cut, std::regex_search(p.name, whole));
    EXPECT_EQ(spec.replicas, spec.cut ? 1 : 2);
    // These sizes divide: nothing is padded.
    EXPECT_EQ(spec.local.elements() * (spec.cut ? 2 : 1), p.shape.elements());
    EXPECT_TRUE(nn::shard_spec(p, MeshShape(), 0).local == p.shape);
    if (!p.name.ends_with(".weight") || !p.projection) continue;
    const nn::ParamId bias = parameters.lookup(p.name.substr(0, p.name.size() - 6) + "bias");
    if (bias == nn::kNoParam) continue;
    // A bias has the rows of its weight.
    const ShardSpec of_bias = nn::shard_spec(parameters[bias], mesh, 1);
    EXPECT_EQ(of_bias.local[0], spec.local[0]);
    if (p.split.kind != SplitRule::Kind::kRows) continue;
    ASSERT_EQ(of_bias.boxes.size(), spec.boxes.size());
    for (size_t i = 0; i < spec.boxes.size(); ++i) {
      EXPECT_EQ(of_bias.boxes[i].global.offset[0], spec.boxes[i].global.offset[0]);
      EXPECT_EQ(of_bias.boxes[i].global.extent[0], spec.boxes[i].global.extent[0]);
    }
  }
}

Json decoder(const char* type, Json more) {
  Json config = {{"model_type", type},          {"vocab_size", 32},
                 {"hidden_size", 16},           {"intermediate_size", 24},
                 {"num_hidden_layers", 1},      {"num_attention_heads", 4},
                 {"max_position_embeddings", 8}};
  config.merge_patch(more);
  return config;
}

INSTANTIATE_TEST_SUITE_P(
    , FamilySplitRules,
    ::testing::Values(
        Family{"gpt2",
               {{"model_type", "gpt2"},
                {"vocab_size", 32},
                {"n_positions", 8},
                {"n_embd", 16},
                {"n_layer", 1},
                {"n_head", 4},
                {"tie_word_embeddings", false}},
               R"(^wpe|ln_|c_proj\.bias)"},
        Family{"gpt_neox", decoder("gpt_neox", {{"rotary_pct", 1.0}}),
               R"(norm|attention\.dense\.bias|4h_to_h\.bias)"},
        Family{"llama",
               decoder("llama",
                       {{"num_key_value_heads", 2}, {"attention_bias", true}, {"mlp_bias", true}}),
               R"(norm|o_proj\.bias|down_proj\.bias)"},
        Family{"mixtral",
               decoder("mixtral", {{"num_key_value_heads", 2}, {"num_local_experts", 3}}),
               R"(norm|moe\.gate)"},
        Family{"qwen2_moe",
               decoder("qwen2_moe", {{"num_experts", 3},
                                     {"num_experts_per_tok", 2},
                                     {"moe_intermediate_size", 10},
                                     {"shared_expert_intermediate_size", 6}}),
               R"(norm|mlp\.gate\.|expert_gate)"},
        Family{"deepseek_v3",
               decoder("deepseek_v3", {{"q_lora_rank", 6},
                                       {"kv_lora_rank", 6},
                                       {"qk_nope_head_dim", 4},
                                       {"qk_rope_head_dim", 2},
                                       {"v_head_dim", 3},
                                       {"n_routed_experts", 3},
                                       {"n_group", 1},
                                       {"topk_group", 1},
                                       {"num_experts_per_tok", 2},
                                       {"first_k_dense_replace", 0},
                                       {"moe_intermediate_size", 10}}),
               R"(norm|mlp\.gate\.|_a_proj)"},
        Family{"gpt_moe",
               {{"model_type", "gpt_moe"},
                {"vocab_size", 32},
                {"n_positions", 8},
                {"n_embd", 16},
                {"n_layer", 2},
                {"n_head", 4},
                {"num_experts", 3},
                {"mlp_type", "residual"},
                {"tie_word_embeddings", false}},
               R"(^wpe|ln_|c_proj\.bias|mlp\.gate|coefficient)"},
        Family{"bert_masked_lm", decoder("bert", {{"architectures", {"BertForMaskedLM"}}}),
               R"(LayerNorm|position_emb|token_type|output\.dense\.bias|transform)"}),
    ::testing::PrintToStringParamName());

// The rows of q, k and v that rank 1 has: its heads of each.
TEST(SplitRules, DealFusedProjectionsByHeads) {
  const MeshShape mesh(2, {.tensor = 2});
  const auto gpt2 = build_architecture({{"model_type", "gpt2"},
                                        {"vocab_size", 32},
                                        {"n_positions", 8},
                                        {"n_embd", 16},
                                        {"n_layer", 1},
                                        {"n_head", 4}});
  const nn::ParameterSet& thirds = gpt2->parameters();
  const ShardSpec spec = nn::shard_spec(thirds[thirds.find("h.0.attn.c_attn.weight")], mesh, 1);
  ASSERT_EQ(spec.boxes.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(spec.boxes[static_cast<size_t>(i)].global.offset[0], 16 * i + 8);
    EXPECT_EQ(spec.boxes[static_cast<size_t>(i)].global.extent[0], 8);
  }
  const auto neox = build_architecture(decoder("gpt_neox", {{"rotary_pct", 1.0}}));
  const nn::ParameterSet& heads = neox->parameters();
  const ShardSpec by_head =
      nn::shard_spec(heads[heads.find("layers.0.attention.query_key_value.weight")], mesh, 1);
  ASSERT_EQ(by_head.boxes.size(), 1u);
  EXPECT_EQ(by_head.boxes[0].global.offset[0], 24);
}

// Two ranks hold the only key; three ranks cannot share two.
TEST(SplitRules, RanksHoldTheSameKeysWhereThereAreFewer) {
  const auto llama = build_architecture(decoder("llama", {{"num_key_value_heads", 1}}));
  const nn::ParameterSet& parameters = llama->parameters();
  for (const char* const name : {"k_proj", "v_proj"}) {
    const nn::ParamId id = parameters.find(std::string("layers.0.self_attn.") + name + ".weight");
    const ShardSpec spec = nn::shard_spec(parameters[id], MeshShape(4, {.tensor = 4}), 3);
    EXPECT_EQ(spec.local, (Shape{4, 16}));
    EXPECT_EQ(spec.boxes[0].copies, 4);
    EXPECT_FALSE(spec.counts(spec.boxes[0]));
  }
}

TEST(SplitRules, KeysThatRanksCannotShareAreRefusedByName) {
  const auto llama = build_architecture(decoder(
      "llama", {{"num_attention_heads", 6}, {"hidden_size", 24}, {"num_key_value_heads", 2}}));
  const nn::ParameterSet& parameters = llama->parameters();
  try {
    nn::shard_spec(parameters[parameters.find("layers.0.self_attn.k_proj.weight")],
                   MeshShape(3, {.tensor = 3}), 0);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kConfig);
    EXPECT_NE(error.message().find("layers.0.self_attn.k_proj.weight of [8, 24]: the 3 ranks of "
                                   "the tensor axis cannot share 2 units of 4"),
              std::string::npos)
        << error.message();
  }
}

// y = w x + b a x: what a column-parallel weight cuts b cuts, what a row-parallel one cuts a cuts.
TEST(SplitRules, OfAdaptersFollowTheirWeights) {
  const auto model = Model::create({{"model_type", "gpt2"},
                                    {"vocab_size", 32},
                                    {"n_positions", 8},
                                    {"n_embd", 16},
                                    {"n_layer", 1},
                                    {"n_head", 4}},
                                   1);
  LoraOptions options;
  options.target_modules = {"c_fc", "mlp.c_proj"};
  options.r = 2;
  models::add_lora(*model, options);
  const nn::ParameterSet& parameters = model->parameters();
  const auto cut = [&](const std::string& name) {
    return nn::shard_spec(parameters[parameters.find(name)], MeshShape(2, {.tensor = 2}), 0).local;
  };
  EXPECT_EQ(cut("h.0.mlp.c_fc.lora_A.weight"), (Shape{2, 16}));
  EXPECT_EQ(cut("h.0.mlp.c_fc.lora_B.weight"), (Shape{32, 2}));
  EXPECT_EQ(cut("h.0.mlp.c_proj.lora_A.weight"), (Shape{2, 32}));
  EXPECT_EQ(cut("h.0.mlp.c_proj.lora_B.weight"), (Shape{16, 2}));
}

}  // namespace
}  // namespace ds::models
