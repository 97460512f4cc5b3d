// Loss and gradients of the families against finite differences of their double references, and
// the promises every family keeps: checkpointing and threads change no bit, masters decide alone.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "attached_state.h"
#include "fresh_seed.h"
#include "reference_families.h"
#include "support.h"

namespace ds::models {
namespace {

using namespace ds::testing;  // NOLINT: references and helpers of these tests

using LogitsFn = std::vector<Vector> (*)(const FamilyShape&, const Weights&,
                                         const std::vector<int32_t>&, const std::vector<int32_t>&,
                                         const std::vector<int>&);
struct Family {
  const char* name;
  Json config;
  FamilyShape shape;
  LogitsFn logits;
};
void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

constexpr int32_t kVocab = 29;
constexpr size_t kLength = 11;

Json decoder(const char* type, const Json& more) {
  Json config = {{"model_type", type},       {"vocab_size", kVocab},
                 {"hidden_size", 20},        {"intermediate_size", 28},
                 {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                 {"initializer_range", 0.2}, {"max_position_embeddings", 32}};
  config.update(more);
  return config;
}

FamilyShape with_experts(FamilyShape shape, const Routing& routing) {
  shape.routing = std::make_shared<Routing>(routing);
  return shape;
}

Json deepseek(const char* type, const Json& more) {
  Json config = decoder(type, {{"q_lora_rank", 9},
                               {"kv_lora_rank", 7},
                               {"qk_nope_head_dim", 6},
                               {"qk_rope_head_dim", 4},
                               {"v_head_dim", 5},
                               {"first_k_dense_replace", 1},
                               {"moe_intermediate_size", 10},
                               {"num_experts_per_tok", 2}});
  config.update(more);
  return config;
}

FamilyShape latent_shape(const Routing& routing, double scale) {
  FamilyShape shape = with_experts({20, 28, 2, 4, 4, 10, 1e-6}, routing);
  shape.latent = LatentShape{6, 4, 5, 7, scale};
  return shape;
}

std::vector<Family> families() {
  // Without a row for padding, which would have no gradient.
  const Json no_dropout = {
      {"hidden_dropout_prob", 0}, {"attention_probs_dropout_prob", 0}, {"pad_token_id", nullptr}};
  Json mlm = decoder("bert", no_dropout), classes = mlm, order = mlm;
  order["architectures"] = {"BertForNextSentencePrediction"};
  mlm["architectures"] = {"BertForMaskedLM"};
  classes["architectures"] = {"BertForSequenceClassification"};
  classes["num_labels"] = 3;
  return {
      {"llama",
       decoder("llama", {{"num_key_value_heads", 2}, {"head_dim", 6}, {"rope_theta", 50}}),
       {20, 28, 2, 4, 2, 6, 1e-6, 0, 6, 50},
       llama_logits},
      {"mistral",
       decoder("mistral", {{"num_key_value_heads", 1}, {"head_dim", 8}, {"sliding_window", 4}}),
       {20, 28, 2, 4, 1, 8, 1e-6, 4, 8},
       llama_logits},
      {"qwen2_tied",
       decoder("qwen2", {{"tie_word_embeddings", true}, {"hidden_size", 24}}),
       {24, 28, 2, 4, 4, 6, 1e-6, 0, 6},
       llama_logits},
      {"neox_parallel",
       decoder("gpt_neox", {{"rotary_pct", 0.5}, {"num_attention_heads", 2}, {"hidden_size", 24}}),
       {24, 28, 2, 2, 2, 12, 1e-5, 0, 6},
       neox_logits},
      {"neox_serial",
       decoder("gpt_neox", {{"rotary_pct", 1.0},
                            {"use_parallel_residual", false},
                            {"num_attention_heads", 2},
                            {"hidden_size", 24}}),
       {24, 28, 2, 2, 2, 12, 1e-5, 0, 12, 10000, false},
       neox_logits},
      {"qwen3",
       decoder("qwen3", {{"num_key_value_heads", 2}, {"head_dim", 6}}),
       {20, 28, 2, 4, 2, 6, 1e-6, 0, 6},
       llama_logits},
      {"olmo2",
       decoder("olmo2",
               {{"num_key_value_heads", 2}, {"hidden_size", 24}, {"pad_token_id", nullptr}}),
       {24, 28, 2, 4, 2, 6, 1e-5, 0, 6},
       llama_logits},
      {"mixtral",
       decoder("mixtral", {{"num_key_value_heads", 2},
                           {"head_dim", 6},
                           {"num_local_experts", 5},
                           {"output_router_logits", true},
                           {"router_aux_loss_coef", 0.5}}),
       with_experts({20, 28, 2, 4, 2, 6, 1e-5, 0, 6, 1e6}, {2, true, 0.5}), llama_logits},
      {"qwen2_moe",
       decoder("qwen2_moe", {{"num_experts", 6},
                             {"num_experts_per_tok", 3},
                             {"moe_intermediate_size", 10},
                             {"shared_expert_intermediate_size", 14},
                             {"mlp_only_layers", {0}},
                             {"output_router_logits", true},
                             {"hidden_size", 24}}),
       with_experts({24, 28, 2, 4, 4, 6, 1e-6, 0, 6}, {3, false, 0.001}), llama_logits},
      {"qwen3_moe",
       decoder("qwen3_moe", {{"num_experts", 5},
                             {"num_experts_per_tok", 2},
                             {"moe_intermediate_size", 10},
                             {"norm_topk_prob", true},
                             {"num_key_value_heads", 2},
                             {"head_dim", 6}}),
       with_experts({20, 28, 2, 4, 2, 6, 1e-6, 0, 6}, {2, true, 0}), llama_logits},
      {"olmoe",
       decoder("olmoe", {{"num_experts", 5},
                         {"num_experts_per_tok", 2},
                         {"output_router_logits", true},
                         {"pad_token_id", nullptr},
                         {"hidden_size", 24}}),
       with_experts({24, 28, 2, 4, 4, 6, 1e-5, 0, 6}, {2, false, 0.01}), llama_logits},
      {"deepseek_v2",
       deepseek("deepseek_v2", {{"q_lora_rank", nullptr},
                                {"topk_method", "group_limited_greedy"},
                                {"n_routed_experts", 6},
                                {"n_group", 3},
                                {"topk_group", 2},
                                {"routed_scaling_factor", 1.5},
                                {"output_router_logits", true},
                                {"router_aux_loss_coef", 0.3}}),
       latent_shape({2, false, 0.3, false, 1.5, 3, 2}, 1 / std::sqrt(10.0)), deepseek_logits},
      // Yarn stretches no angle here, but multiplies the scores.
      {"deepseek_v3",
       deepseek("deepseek_v3", {{"n_routed_experts", 6},
                                {"n_group", 3},
                                {"topk_group", 2},
                                {"n_shared_experts", 2},
                                {"output_router_logits", true},
                                {"router_aux_loss_coef", 0.2},
                                {"rope_scaling",
                                 {{"type", "yarn"},
                                  {"factor", 4},
                                  {"mscale", 0.7},
                                  {"mscale_all_dim", 0.7},
                                  {"original_max_position_embeddings", 1 << 20}}}}),
       latent_shape({2, true, 0.2, true, 2.5, 3, 2},
                    std::pow(0.07 * std::log(4.0) + 1, 2) / std::sqrt(10.0)),
       deepseek_logits},
      {"bert_mlm", mlm, {20, 28, 2, 4, 4, 5, 1e-12}, bert_mlm_logits},
      {"bert_classifier", classes, {20, 28, 2, 4, 4, 5, 1e-12}, bert_classes},
      {"bert_order", order, {20, 28, 2, 4, 4, 5, 1e-12}, bert_order}};
}

// As run_pass counts it.
double reference_loss(const Family& family, const Weights& w, const Texts& texts) {
  double total = 0;
  int64_t counted = 0;
  Routing* const routing = family.shape.routing.get();
  if (routing != nullptr) routing->begin_batch();
  for (size_t b = 0; b < texts.ids.size(); ++b) {
    const auto logits =
        family.logits(family.shape, w, texts.ids[b], texts.types[b], texts.masks[b]);
    for (size_t t = 0; t < logits.size(); ++t) {
      const int32_t label = logits.size() == 1
                                ? texts.ids[b][0] % static_cast<int32_t>(logits[0].size())
                                : texts.labels[b][t];
      if (label == -100) continue;
      double top = -INFINITY, sum_exp = 0;
      for (double v : logits[t]) top = std::max(top, v);
      for (double v : logits[t]) sum_exp += std::exp(v - top);
      total += top + std::log(sum_exp) - logits[t][static_cast<size_t>(label)];
      ++counted;
    }
  }
  return total / static_cast<double>(counted) + (routing != nullptr ? routing->loss() : 0);
}

class FamilyGradients : public ::testing::TestWithParam<Family> {
 protected:
  Texts texts(std::mt19937_64& random, size_t batch) const {
    return random_texts(random, batch, kLength, kVocab,
                        std::string(GetParam().name).starts_with("bert"));
  }
};

TEST_P(FamilyGradients, MatchFiniteDifferencesOfTheDoubleReference) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(str_cat("seed ", seed));
  std::mt19937_64 random(seed);
  const Family& family = GetParam();
  const auto model = Model::create(family.config, seed);
  disturb(*model, random);
  const Texts data = texts(random, 3);
  if (family.shape.routing) family.shape.routing->chosen.clear();  // of another run's texts
  const double loss = run_pass(*model, data, {0, 2});
  Weights weights;
  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    const std::vector<float> w = values(master_of(*model, id));
    weights[model->parameters()[id].name] = {w.begin(), w.end()};
  }
  // fp32 against double: a mean of sums of a few hundred rounded terms.
  EXPECT_NEAR(loss, reference_loss(family, weights, data), 2e-5 * std::abs(loss));
  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    const std::string& name = model->parameters()[id].name;
    if (!model->parameters()[id].trainable) continue;  // a router's bias
    Vector& w = weights[name];
    const std::vector<float> gradient = values(train_state(*model).gradients().view(id));
    // A random direction tests every element of the tensor at once.
    std::normal_distribution<double> normal;
    Vector direction(w.size());
    double analytic = 0, scale = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      direction[i] = normal(random);
      analytic += direction[i] * gradient[i];
      scale += std::pow(direction[i] * gradient[i], 2);
    }
    const Vector kept = w;
    const double h = 1e-5;
    const auto at = [&](double step) {
      for (size_t i = 0; i < w.size(); ++i) w[i] = kept[i] + step * direction[i];
      return reference_loss(family, weights, data);
    };
    const double numeric = (at(h) - at(-h)) / (2 * h);
    w = kept;
    // Truncation is h^2 times third derivatives; fp32 backward rounds at 1e-6 of the summed terms.
    EXPECT_NEAR(analytic, numeric, 2e-4 * (std::sqrt(scale) + std::abs(numeric)) + 2e-6) << name;
  }
}

TEST_P(FamilyGradients, CheckpointingAndThreadsGiveTheSameBits) {
  std::mt19937_64 random(ds::fresh_seed());
  Json config = GetParam().config;
  const bool bert = config["model_type"] == "bert";
  config[bert ? "attention_probs_dropout_prob" : "attention_dropout"] = 0.2;
  if (bert) config["hidden_dropout_prob"] = 0.2;
  if (config["model_type"] == "gpt_neox") config["hidden_dropout"] = 0.2;
  if (config["model_type"] == "mixtral") config["router_jitter_noise"] = 0.1;
  const auto model = Model::create(config, 5);
  disturb(*model, random);
  const Texts data = texts(random, 4);
  const double loss = run_pass(*model, data);
  const std::vector<float> expected = values(train_state(*model).gradients().all());
  for (const Pass& pass : {Pass{0, 2}, Pass{1, 1}, Pass{2, 3}}) {
    EXPECT_EQ(run_pass(*model, data, pass), loss) << pass.segments;
    EXPECT_EQ(values(train_state(*model).gradients().all()), expected)
        << pass.segments << " segments, " << pass.threads << " threads";
  }
}

TEST_P(FamilyGradients, Bf16StaysNearFp32) {
  std::mt19937_64 random(ds::fresh_seed());
  const auto model = Model::create(GetParam().config, 5);
  const Texts data = texts(random, 4);
  const double fp32 = run_pass(*model, data);
  train_state(*model).set_compute_type(model->context(), DType::kBFloat16);
  EXPECT_NEAR(run_pass(*model, data), fp32, 2e-2 * fp32);
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyGradients, ::testing::ValuesIn(families()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ds::models
