// Configurations through the C API: the check, engines of published documents, files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/json.h"
#include "capi/world.h"

namespace capi_test {
namespace {

using testing::HasSubstr;

ds::Json check(const std::string& document, const char* options = nullptr) {
  char* text = nullptr;
  EXPECT_DS_OK(ds_config_check(document.c_str(), options, &text));
  return ds::parse_json(take(text), "check", ds::Code::kInternal);
}

ds::Json engine_document(ds_engine* engine) {
  char* text = nullptr;
  EXPECT_DS_OK(ds_engine_config(engine, &text));
  return ds::parse_json(take(text), "config", ds::Code::kInternal);
}

// The Trainer's kind of document.
constexpr const char* kPublished = R"({
  "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto",
  "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
  "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}, # all of it
})";

TEST(CapiConfig, CheckListsProblemsAndWhatIsAccepted) {
  const ds::Json refused = check(kPublished);
  EXPECT_EQ(refused.at("accepted"), false);
  EXPECT_GE(refused.at("problems").size(), 5u);
  EXPECT_TRUE(refused.at("config").is_null());
  EXPECT_EQ(refused.at("document").at("zero_optimization").at("stage"), 2);

  const ds::Json accepted =
      check(kPublished, R"({"lenient": true, "world": 4, "model": {"n_embd": 10},
                            "resolve_auto": {"lr": 0.25, "precision": "bf16", "betas": [0.5, 0.6],
                                             "train_micro_batch_size_per_gpu": 2}})");
  EXPECT_EQ(accepted.at("accepted"), true) << accepted.dump(1);
  EXPECT_EQ(accepted.at("world"), 4);
  EXPECT_EQ(accepted.at("config").at("train_batch_size"), 8);
  EXPECT_EQ(accepted.at("config").at("optimizer").at("params").at("lr"), 0.25);
  EXPECT_EQ(accepted.at("config").at("zero_optimization").at("reduce_bucket_size"), 100);
  EXPECT_EQ(accepted.at("origins").at("/bf16/enabled"), "auto");
  // Strict reading accepts what comes back.
  EXPECT_EQ(check(accepted.at("document").dump(), R"({"world": 4})").at("accepted"), true);
}

TEST(CapiConfig, OptionsAreRead) {
  char* text = nullptr;
  for (const char* options :
       {"[]", R"({"lenient": 1})", R"({"worlds": 1})", R"({"world": 0})",
        R"({"resolve_auto": {"rate": 1}})", R"({"resolve_auto": {"precision": "fp8"}})",
        R"({"resolve_auto": {"betas": [1]}})", R"({"resolve_auto": 1})", R"({"set": []})",
        R"({"set": {"": 1}})", R"({"device": "tpu"})", R"({"model": "gpt2"})"}) {
    EXPECT_EQ(ds_config_check("{}", options, &text), DS_ERR_CONFIG) << options;
    EXPECT_THAT(ds_last_error_message(), HasSubstr("options")) << options;
  }
}

TEST(CapiConfig, EngineOfAPublishedDocument) {
  World world;
  ds_engine_destroy(world.engine);
  world.engine = nullptr;
  EXPECT_EQ(ds_engine_create(kPublished, nullptr, world.model, nullptr, &world.engine),
            DS_ERR_CONFIG);
  ASSERT_DS_OK(
      ds_engine_create(kPublished,
                       R"({"lenient": true, "set": {"optimizer.params.lr": 0.5}, "resolve_auto":
          {"precision": "fp32", "train_micro_batch_size_per_gpu": 3}})",
                       world.model, nullptr, &world.engine));
  const ds::Json document = engine_document(world.engine);
  EXPECT_EQ(document.at("config").at("train_micro_batch_size_per_gpu"), 3);
  EXPECT_EQ(document.at("config").at("bf16").at("enabled"), false);
  EXPECT_EQ(document.at("origins").at("/optimizer/params/lr"), "set");
  // The size of the model's hidden states, which its config.json tells.
  const auto width =
      ds::parse_json(model_config(), "model", ds::Code::kInternal).at("n_embd").get<int64_t>();
  EXPECT_EQ(document.at("config").at("zero_optimization").at("reduce_bucket_size"), width * width);
  EXPECT_FALSE(document.at("given").contains("seed"));
  EXPECT_EQ(document.at("given").at("zero_optimization").at("stage"), 2);
}

TEST(CapiConfig, WithoutOptimizerTheRealOneIsShownOrMissed) {
  World world;
  ds_engine_destroy(world.engine);
  world.engine = nullptr;
  const char* config = R"({"train_batch_size": 2})";
  EXPECT_EQ(ds_engine_create(config, R"({"require_optimizer": true})", world.model, nullptr,
                             &world.engine),
            DS_ERR_CONFIG);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("/optimizer: missing"));
  ASSERT_DS_OK(ds_engine_create(config, nullptr, world.model, nullptr, &world.engine));
  const ds::Json document = engine_document(world.engine);
  ds_optimizer_destroy(world.optimizer);
  ASSERT_DS_OK(ds_engine_optimizer(world.engine, &world.optimizer));
  const double lr = info_of(world.optimizer).lr;
  EXPECT_EQ(document.at("config").at("optimizer").at("params").at("lr"), lr);
  EXPECT_THAT(document.at("warnings").dump(), HasSubstr("/optimizer: missing; AdamW"));
}

TEST(CapiConfig, EngineOfAFile) {
  World world;
  ds_engine_destroy(world.engine);
  world.engine = nullptr;
  const std::string path = world.folder.file("ds_config.json");
  EXPECT_EQ(ds_engine_create_from_file(path.c_str(), nullptr, world.model, nullptr, &world.engine),
            DS_ERR_NOT_FOUND);
  std::ofstream(path) << R"({"train_batch_sice": 2})";
  EXPECT_EQ(ds_engine_create_from_file(path.c_str(), nullptr, world.model, nullptr, &world.engine),
            DS_ERR_CONFIG);
  EXPECT_THAT(ds_last_error_message(), HasSubstr(path + ": configuration: /train_batch_sice"));
  // The name for the text.
  EXPECT_EQ(ds_engine_create(path.c_str(), nullptr, world.model, nullptr, &world.engine),
            DS_ERR_CONFIG);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("ds_engine_create_from_file"));
  std::ofstream(path) << engine_config();
  ASSERT_DS_OK(
      ds_engine_create_from_file(path.c_str(), nullptr, world.model, nullptr, &world.engine));
}

TEST(CapiConfig, PlanReadsAsEnginesDo) {
  char* text = nullptr;
  const std::string model = model_config();
  EXPECT_EQ(ds_plan(model.c_str(), kPublished, "{}", &text), DS_ERR_CONFIG);
  ASSERT_DS_OK(ds_plan(model.c_str(), kPublished,
                       R"({"world": 2, "lenient": true, "resolve_auto": {"precision": "bf16",
                           "lr": 1, "train_micro_batch_size_per_gpu": 1}})",
                       &text));
  EXPECT_EQ(ds::parse_json(take(text), "plan", ds::Code::kInternal).at("stage"), 2);
}

}  // namespace
}  // namespace capi_test
