// Freezing and low-rank adapters: against the merged model, whose weight gradients give those of
// the adapters by the chain rule, and against what PEFT computes (tests/data/families/*_lora).
#include "models/lora.h"
#include "attached_state.h"
#include "fresh_seed.h"
#include "models/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "infer/generate.h"
#include "models/weights.h"
#include "support.h"
#include "test_paths.h"

namespace ds::models {
namespace {

using ::ds::fresh_seed;
using ::ds::testing::disturb;
using ::ds::testing::Pass;
using ::ds::testing::random_texts;
using ::ds::testing::run_pass;
using ::ds::testing::Texts;
using ::ds::testing::values;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

Json llama_config() {
  return {{"model_type", "llama"},    {"vocab_size", 29},         {"hidden_size", 24},
          {"intermediate_size", 40},  {"num_hidden_layers", 2},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"initializer_range", 0.2}, {"max_position_embeddings", 32}};
}

LoraOptions options_for(std::vector<std::string> targets, double dropout = 0) {
  LoraOptions options;
  options.r = 3;
  options.alpha = 5;
  options.dropout = dropout;
  options.target_modules = std::move(targets);
  options.seed = 4;
  return options;
}

class Lora : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ds-lora-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder_); }
  static std::string refused(Code code, const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.message();
      return error.message();
    }
    ADD_FAILURE() << "accepted";
    return {};
  }

  fs::path folder_;
};

TEST_F(Lora, FreshAdaptersChangeNothingAndFreezeTheRest) {
  std::mt19937_64 random(ds::fresh_seed());
  const auto model = Model::create(llama_config(), 5);
  disturb(*model, random);
  const Texts texts = random_texts(random, 2, 9, 29);
  const double before = run_pass(*model, texts);
  const auto base = model->parameters().size();
  const std::vector<float> kept = values(master_of(*model, 3));
  model->detach_engine(model->context());
  models::add_lora(*model, options_for({"all-linear"}));
  EXPECT_EQ(run_pass(*model, texts), before);
  EXPECT_EQ(values(master_of(*model, 3)), kept);
  EXPECT_EQ(model->parameters().size(), base + 2 * 2 * 7);
  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    EXPECT_EQ(model->parameters()[id].trainable, id >= base) << model->parameters()[id].name;
  }
  const auto again = Model::create(llama_config(), 5);
  models::add_lora(*again, options_for({"all-linear"}));
  EXPECT_EQ(values(master_of(*again, base)), values(master_of(*model, base)));
  model->detach_engine(model->context());
  models::remove_lora(*model);
  EXPECT_EQ(model->parameters().size(), base);
  EXPECT_TRUE(model->parameters()[0].trainable);
}

TEST_F(Lora, GradientsFollowFromThoseOfTheMergedWeights) {
  std::mt19937_64 random(ds::fresh_seed());
  const auto model = Model::create(llama_config(), 5);
  disturb(*model, random);
  const Texts texts = random_texts(random, 3, 11, 29);
  const auto base = model->parameters().size();
  LoraOptions options = options_for({"q_proj", "mlp.down_proj", "o_proj"});
  options.use_rslora = true;
  models::add_lora(*model, options);
  disturb(*model, random);
  const double loss = run_pass(*model, texts);
  struct Kept {
    nn::ParamId weight;
    std::vector<float> a, b, da, db;
  };
  std::vector<Kept> kept;
  for (nn::ParamId id = 0; id < base; ++id) {
    const nn::Adapter* adapter = model->parameters().adapter(id);
    if (adapter == nullptr) continue;
    EXPECT_FLOAT_EQ(adapter->scale, static_cast<float>(5 / std::sqrt(3.0)));
    zero::TrainState& s = train_state(*model);
    kept.push_back({id, values(s.masters().view(adapter->a)), values(s.masters().view(adapter->b)),
                    values(s.gradients().view(adapter->a)),
                    values(s.gradients().view(adapter->b))});
  }
  ASSERT_EQ(kept.size(), 6u);
  model->detach_engine(model->context());
  models::merge_lora(*model);
  EXPECT_EQ(model->parameters().size(), base);
  EXPECT_NEAR(run_pass(*model, texts), loss, 2e-6 * std::abs(loss));
  const double scale = options.scale();
  for (const Kept& k : kept) {
    const Tensor dw = train_state(*model).gradients().view(k.weight);
    const int64_t out = dw.size(0), in = dw.size(1), rank = 3;
    const auto at = [](const std::vector<float>& m, int64_t row, int64_t columns, int64_t column) {
      return double{m[static_cast<size_t>(row * columns + column)]};
    };
    const std::vector<float> w = values(dw);
    double worst = 0, largest = 0;
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t i = 0; i < in; ++i) {
        double want = 0;
        for (int64_t o = 0; o < out; ++o) want += scale * at(k.b, o, rank, r) * at(w, o, in, i);
        worst = std::max(worst, std::abs(want - at(k.da, r, in, i)));
        largest = std::max(largest, std::abs(want));
      }
      for (int64_t o = 0; o < out; ++o) {
        double want = 0;
        for (int64_t i = 0; i < in; ++i) want += scale * at(w, o, in, i) * at(k.a, r, in, i);
        worst = std::max(worst, std::abs(want - at(k.db, o, rank, r)));
        largest = std::max(largest, std::abs(want));
      }
    }
    // fp32 sums in another order, through two layers of rounding.
    EXPECT_LT(worst, 2e-5 * largest) << model->parameters()[k.weight].name;
    EXPECT_GT(largest, 0);
  }
}

TEST_F(Lora, DropoutIsReplayedByCheckpointing) {
  std::mt19937_64 random(ds::fresh_seed());
  const auto model = Model::create(llama_config(), 5);
  models::add_lora(*model, options_for({"all-linear"}, 0.3));
  disturb(*model, random);
  const Texts texts = random_texts(random, 3, 11, 29);
  const double loss = run_pass(*model, texts);
  const std::vector<float> expected = values(train_state(*model).gradients().all());
  for (const Pass& pass : {Pass{0, 2}, Pass{1, 1}, Pass{2, 3}}) {
    EXPECT_EQ(run_pass(*model, texts, pass), loss);
    EXPECT_EQ(values(train_state(*model).gradients().all()), expected)
        << pass.segments << " segments";
  }
}

TEST_F(Lora, Bf16StaysNearFp32) {
  std::mt19937_64 random(ds::fresh_seed());
  const auto model = Model::create(llama_config(), 5);
  models::add_lora(*model, options_for({"all-linear"}));
  disturb(*model, random, 0.05f);
  const Texts texts = random_texts(random, 3, 11, 29);
  const double fp32 = run_pass(*model, texts);
  train_state(*model).set_compute_type(model->context(), DType::kBFloat16);
  EXPECT_NEAR(run_pass(*model, texts), fp32, 2e-2 * fp32);
}

TEST_F(Lora, FoldersHoldAdaptersAndTrainedHeadsOnly) {
  std::mt19937_64 random(ds::fresh_seed());
  Json config = {{"model_type", "bert"},     {"architectures", {"BertForSequenceClassification"}},
                 {"vocab_size", 29},         {"hidden_size", 24},
                 {"intermediate_size", 40},  {"num_hidden_layers", 2},
                 {"num_attention_heads", 4}, {"num_labels", 3}};
  const auto model = Model::create(config, 5);
  models::add_lora(*model, options_for({"query", "value"}));
  EXPECT_EQ(models::set_trainable(*model, {"classifier.*"}, true), 2);
  disturb(*model, random);
  save_lora(*model, folder_);
  const SafetensorsModel file(folder_ / "adapter_model.safetensors");
  EXPECT_EQ(file.entries().size(), 2u * 2 * 2 + 2);
  file.require("base_model.model.bert.encoder.layer.1.attention.self.query.lora_A.weight");
  file.require("base_model.model.classifier.bias");
  EXPECT_LT(fs::file_size(folder_ / "adapter_model.safetensors"),
            4 * (4 * 2 * 3 * 24 + 3 * 24 + 3) + 2000);
  const auto other = Model::create(config, 5);
  load_lora(*other, folder_);
  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    const nn::Parameter &a = model->parameters()[id], &b = other->parameters()[id];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.trainable, b.trainable) << a.name;
    if (a.trainable) {
      EXPECT_EQ(values(master_of(*model, id)), values(master_of(*other, id))) << a.name;
    }
  }
  EXPECT_THAT(refused(Code::kState, [&] { load_lora(*other, folder_); }), HasSubstr("already"));
  // Adapters of another width leave the model as it was.
  config["hidden_size"] = 32;
  const auto wider = Model::create(config, 5);
  EXPECT_THAT(refused(Code::kCorrupt, [&] { load_lora(*wider, folder_); }), HasSubstr("lora_A"));
  EXPECT_FALSE(wider->lora());
  EXPECT_TRUE(wider->parameters()[0].trainable);
  EXPECT_THAT(refused(Code::kState, [&] { export_model(*other, folder_, DType::kFloat32); }),
              HasSubstr("merge"));
}

TEST_F(Lora, WhatDoesNotFitIsRefusedByName) {
  const auto model = Model::create(llama_config(), 5);
  const auto add = [&](std::vector<std::string> targets) {
    return [&model, targets] { models::add_lora(*model, options_for(targets)); };
  };
  EXPECT_THAT(refused(Code::kNotFound, add({"q_proj", "k_prj"})),
              HasSubstr("k_prj; did you mean k_proj?"));
  EXPECT_THAT(refused(Code::kNotFound, add({"lm_head"})), HasSubstr("lm_head"));
  refused(Code::kInvalidArgument, add({}));
  refused(Code::kState, [&] { models::merge_lora(*model); });
  refused(Code::kState, [&] { save_lora(*model, folder_); });
  EXPECT_FALSE(model->lora());
  const auto parse = [](const Json& changes) {
    Json config = {{"peft_type", "LORA"}, {"r", 4}, {"target_modules", {"q_proj"}}};
    config.update(changes);
    return [config] { parse_lora(config); };
  };
  EXPECT_THAT(refused(Code::kUnsupported, parse({{"use_dora", true}})), HasSubstr("use_dora"));
  EXPECT_THAT(refused(Code::kUnsupported, parse({{"bias", "all"}})), HasSubstr("bias"));
  EXPECT_THAT(refused(Code::kUnsupported, parse({{"rank_pattern", {{"x", 3}}}})),
              HasSubstr("rank_pattern"));
  EXPECT_THAT(refused(Code::kUnsupported, parse({{"lora_alfa", 3}})), HasSubstr("lora_alpha"));
  EXPECT_THAT(refused(Code::kUnsupported, parse({{"target_modules", ".*_proj"}})),
              HasSubstr("pattern"));
  parse({{"rank_pattern", Json::object()}, {"use_dora", false}, {"modules_to_save", nullptr}})();
}

TEST_F(Lora, FreezingKeepsValuesAndStopsGradients) {
  std::mt19937_64 random(ds::fresh_seed());
  const auto model = Model::create(llama_config(), 5);
  disturb(*model, random);
  const Texts texts = random_texts(random, 2, 9, 29);
  const double loss = run_pass(*model, texts);
  const nn::ParamId id = model->parameters().find("layers.1.mlp.up_proj.weight");
  const std::vector<float> gradient = values(train_state(*model).gradients().view(id));
  model->detach_engine(model->context());
  EXPECT_EQ(models::set_trainable(*model, {"*"}, false), model->parameters().size());
  EXPECT_EQ(models::set_trainable(*model, {"layers.1.*", "model.norm.weight"}, true), 10);
  EXPECT_EQ(run_pass(*model, texts), loss);
  EXPECT_EQ(values(train_state(*model).gradients().view(id)), gradient);
  EXPECT_FALSE(train_state(*model).gradients().gradient(
      model->parameters().find("layers.0.mlp.up_proj.weight")));
  model->detach_engine(model->context());
  EXPECT_THAT(refused(Code::kNotFound, [&] { models::set_trainable(*model, {"h.*"}, false); }),
              HasSubstr("h.*"));
  static_cast<void>(model->attach_engine<zero::TrainState>());
  refused(Code::kState, [&] { models::set_trainable(*model, {"*"}, true); });
  refused(Code::kState, [&] { models::add_lora(*model, options_for({"q_proj"})); });
  model->detach_engine(model->context());
}

struct Recorded {
  const char* base;
  const char* variant;
};
void PrintTo(const Recorded& r, std::ostream* out) { *out << r.base; }
class PeftFolder : public ::testing::TestWithParam<Recorded> {};

TEST_P(PeftFolder, LogitsMatchPeftBesideAndMerged) {
  const fs::path root = test_data() / "families";
  const fs::path base = root / GetParam().base, folder = root / str_cat(GetParam().base, "_lora");
  std::string pattern = (fs::temp_directory_path() / "ds-peft-XXXXXX").string();
  const fs::path scratch = ::mkdtemp(pattern.data());
  fs::copy_file(base / str_cat("config.", GetParam().variant, ".json"), scratch / "config.json");
  fs::create_symlink(base / "model.safetensors", scratch / "model.safetensors");
  const auto model = open_model(scratch);
  fs::remove_all(scratch);
  load_lora(*model, folder);
  const SafetensorsFile expected(folder / "expected.safetensors");
  const auto tensor = [&](const char* name) {
    const SafetensorsEntry* e = expected.find(name);
    Tensor out = Tensor::empty(model->device(), *e->dtype, Shape(e->shape), MemoryTag::kOther);
    e->read(0, {static_cast<std::byte*>(out.raw()), static_cast<size_t>(e->size)});
    return out;
  };
  const std::vector<float> want = values(tensor("logits"));
  for (const bool merged : {false, true}) {
    if (merged) models::merge_lora(*model);
    const Tensor logits = infer::batch_logits(model->context(), model->reader(),
                                              model->architecture(), tensor("ids"), Tensor());
    const std::vector<float> got = values(logits);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4) << i << merged;
  }
}
INSTANTIATE_TEST_SUITE_P(Recorded, PeftFolder,
                         ::testing::Values(Recorded{"gpt2", "default"},
                                           Recorded{"llama", "default"}),
                         [](const auto& test) { return std::string(test.param.base); });

}  // namespace
}  // namespace ds::models
