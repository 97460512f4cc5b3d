// The table of what does not go together: the page shows it, and engines refuse by it.
#include "engine/combinations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/file.h"
#include "engine/share_options.h"
#include "test_paths.h"

namespace ds {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string page() { return test_source().string() + "/docs/combinations.md"; }

TEST(Combinations, ThePageShowsTheTable) {
  const std::string text = read_text_file(page());
  EXPECT_THAT(text, HasSubstr(describe_combinations()))
      << "docs/combinations.md is stale; the table is now\n"
      << describe_combinations();
}

TEST(Combinations, EveryRowSaysWhyAndWhatToDo) {
  std::set<std::pair<std::string, std::string>> seen;
  for (const Combination& row : combinations()) {
    EXPECT_TRUE(seen.emplace(row.what, row.with).second) << row.what << " with " << row.with;
    EXPECT_STRNE(row.why, "");
    EXPECT_EQ(row.effect == CombinationEffect::kWithoutEffect, std::string(row.instead).empty())
        << row.what;
  }
  EXPECT_GT(seen.size(), 15u);
}

Json tiny() {
  return {{"model_type", "gpt2"}, {"vocab_size", 17}, {"n_positions", 8},
          {"n_embd", 8},          {"n_layer", 1},     {"n_head", 2}};
}

std::shared_ptr<models::Model> own_parameters() {
  nn::ParameterSet set;
  nn::Parameter p;
  p.name = "w";
  p.shape = {4, 4};
  set.add(std::move(p));
  return models::Model::from_parameters(std::move(set));
}

// Whether a call is refused, by what decides about it.
bool refused(Refusal call, const models::Model& model, int stage, int ranks) {
  const Config config = load_config(
      str_cat(R"({"train_batch_size": )", ranks,
              R"(, "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": )", stage, "}}"),
      {.data_parallel_size = ranks});
  try {
    check_call(call, {config, model, ranks});
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_THAT(error.message(), AllOf(HasSubstr(" with "), HasSubstr(": "), HasSubstr("; ")));
    return true;
  }
}

TEST(Combinations, CallsAreRefusedWhereTheirRowSaysSo) {
  const auto built_in = models::Model::create(tiny(), 1);
  const auto own = own_parameters();
  EXPECT_TRUE(refused(Refusal::kFetchOfBuiltInModel, *built_in, 3, 2));
  EXPECT_FALSE(refused(Refusal::kFetchOfBuiltInModel, *own, 3, 2));
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    EXPECT_EQ(refused(Refusal::kWholeGradientsAtStage3, *own, stage, 2), stage == 3);
    EXPECT_FALSE(refused(Refusal::kWholeGradientsAtStage3, *own, stage, 1));
    EXPECT_EQ(refused(Refusal::kAddedGradientsAtStage3, *built_in, stage, 2), stage == 3);
    EXPECT_FALSE(refused(Refusal::kAddedGradientsAtStage3, *built_in, stage, 1));
    EXPECT_EQ(refused(Refusal::kNoSyncWithReducedGradients, *built_in, stage, 2), stage >= 2);
    EXPECT_FALSE(refused(Refusal::kGradientViewOnGpu, *built_in, stage, 2));
    EXPECT_FALSE(refused(Refusal::kParametersUnderAnUpdate, *built_in, stage, 2));
  }
}

TEST(Combinations, EnginesOnTheCpuAreRefusedFp8OfOwnParametersAlone) {
  const auto built_in = models::Model::create(tiny(), 1);
  const auto own = own_parameters();
  const Config plain = load_config(R"({"train_batch_size": 2, "optimizer": {"type": "AdamW"},
      "bf16": {"enabled": true}, "zero_optimization": {"stage": 1,
      "offload_optimizer": {"device": "cpu"}}})",
                                   {.data_parallel_size = 2});
  EXPECT_NO_THROW(check_combinations({plain, *built_in, 2}));
  EXPECT_NO_THROW(check_combinations({plain, *own, 2}));
  const Config fp8 = load_config(R"({"train_batch_size": 2, "optimizer": {"type": "AdamW"},
      "bf16": {"enabled": true}, "fp8": {"enabled": true}})",
                                 {.data_parallel_size = 2});
  EXPECT_NO_THROW(check_combinations({fp8, *built_in, 2}));
  EXPECT_THROW(check_combinations({fp8, *own, 2}), Error);
}

TEST(Combinations, AShareOfOffloadHasAnEffectWhereThereAreTwoPlaces) {
  const auto built_in = models::Model::create(tiny(), 1);
  const auto why = [&](const char* offload) {
    const Config config = load_config(
        str_cat(R"({"train_batch_size": 1, "optimizer": {"type": "AdamW"}, "zero_optimization":
                   {"stage": 3, "offload_optimizer": )",
                offload, "}}"));
    const Situation situation{config, *built_in, 1};
    EXPECT_NO_THROW(check_combinations(situation));
    return without_effect("zero_optimization.offload_optimizer.ratio", situation);
  };
  EXPECT_THAT(why(R"({"device": "cpu", "ratio": 0.3})"), HasSubstr("the same memory"));
  EXPECT_EQ(why(R"({"device": "cpu"})"), "");
  EXPECT_EQ(why(R"({"device": "nvme", "nvme_path": "/x", "ratio": 0.3})"), "");
}

TEST(Combinations, GraphsHaveNoEffectOnTheCpu) {
  const auto built_in = models::Model::create(tiny(), 1);
  const Config config = load_config(R"({"train_batch_size": 1, "optimizer": {"type": "AdamW"}})");
  EXPECT_THAT(without_effect("graph_harvesting", {config, *built_in, 1}), HasSubstr("GPU"));
  EXPECT_EQ(without_effect("no_such_key", {config, *built_in, 1}), "");
}

}  // namespace
}  // namespace ds
