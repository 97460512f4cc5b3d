// check_config: all problems at once, "auto" resolved on request, lenient reading, values set over
// the document, and the document that it gives back.
#include "config/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "config/config.h"

namespace ds {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<std::string> lines(const CheckedConfig& checked) {
  std::vector<std::string> out;
  for (const ConfigProblem& one : checked.parsed.problems) {
    out.push_back(std::string(problem_kind_name(one.kind)) + " " + one.message());
  }
  return out;
}

ReadOptions lenient() {
  ReadOptions out;
  out.lenient = true;
  return out;
}

ReadOptions automatic(const AutoValues& values = {}) {
  ReadOptions out;
  out.resolve_auto = values;
  return out;
}

const Json& at(const CheckedConfig& checked, const char* path) { return checked.parsed.at(path); }

TEST(Check, ListsEveryProblemOnce) {
  const CheckedConfig checked = check_config(R"({
    "train_batch_size": 8, "invented": 1, "gradient_clipping": -1, "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "rate": 2}, "legacy_fusion": true},
    "zero_optimization": {"stage": 7, "offload_optimizer": {"device": "cpu"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 1.5}}})");
  EXPECT_FALSE(checked.accepted());
  EXPECT_THAT(
      lines(checked),
      ElementsAre(
          HasSubstr("error /invented: unknown key"),
          HasSubstr("error /gradient_clipping: -1 is out of range"),
          HasSubstr("auto /bf16/enabled: \"auto\" leaves the choice"),
          HasSubstr("auto /optimizer/params/lr: \"auto\" is not resolved here; leave the key out"),
          HasSubstr("error /optimizer/params/rate: unknown key"),
          HasSubstr("error /zero_optimization/stage: 7 is out of range"),
          HasSubstr("error /scheduler/params/warmup_num_steps: expected an integer, got 1.5"),
          HasSubstr("error /scheduler/params/total_num_steps: missing"),
          HasSubstr(
              "missing_feature /optimizer/legacy_fusion: true asks for the legacy fused path")))
      << testing::PrintToString(lines(checked));
}

TEST(Check, OneProblemCausesNoOther) {
  // Each of these has one; what would follow from the value that could not be read is not told.
  for (const char* document :
       {R"({"train_batch_size": "many", "optimizer": {"type": "Adam"}})",
        R"({"train_batch_size": 8, "optimizer": {"type": "FusedAdam", "params": {"lr": 1}}})",
        R"({"train_batch_size": 8, "optimizer": {"params": {"lr": 1}}})",
        R"({"train_batch_size": 8, "optimizer": "Adam"})",
        R"({"train_batch_size": 8, "zero_optimization": {"stage": 4,
            "offload_optimizer": {"device": "cpu"}}})",
        R"({"train_batchsize": 8, "optimizer": {"type": "Adam"}})",
        R"({"train_batch_size": 8, "scheduler": {"type": "auto", "params": {"x": 1}}})",
        R"({"train_batch_size": 8, "fp16": {"enabled": "maybe"}, "data_types":
            {"param_dtype": "fp16"}})"}) {
    EXPECT_EQ(check_config(document).parsed.problems.size(), 1u)
        << document << "\n"
        << testing::PrintToString(lines(check_config(document)));
  }
}

TEST(Check, MessageOfARefusalCountsTheOthers) {
  try {
    load_config(R"({"train_batch_size": 0, "gradient_clipping": -1, "seed": -1})");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "configuration: /train_batch_size: 0 is out of range; it must be at least 1 (and 2 "
              "more problems: /gradient_clipping, /seed)");
  }
}

TEST(Check, HostileDocumentsHaveABoundedList) {
  std::string document = "{";
  for (int i = 0; i < 20000; ++i) document += "\"key" + std::to_string(i) + "\": 1, ";
  const CheckedConfig checked = check_config(document + "\"train_batch_size\": 8}");
  EXPECT_FALSE(checked.accepted());
  EXPECT_LE(checked.parsed.problems.size(), kMostProblems);
}

TEST(Check, AutoNeverDecidesSilently) {
  for (const char* more : {R"("fp16": {"enabled": "auto"})", R"("bfloat16": {"enabled": "auto"})",
                           R"("zero_optimization": {"stage": "auto"})",
                           R"("zero_optimization": {"stage": 3, "offload_param":
                              {"device": "auto"}})",
                           R"("zero_optimization": {"stage": 1, "offload_optimizer":
                              {"device": "auto"}})"}) {
    const std::string document =
        std::string(R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}, )") + more + "}";
    for (const ReadOptions& how : {ReadOptions(), lenient(), automatic()}) {
      const CheckedConfig checked = check_config(document, {}, how);
      ASSERT_EQ(checked.parsed.problems.size(), 1u) << document;
      EXPECT_EQ(checked.parsed.problems[0].kind, ProblemKind::kAuto) << document;
    }
  }
}

// As Hugging Face's Trainer fills its documents.
TEST(Check, AutoBecomesWhatTheTrainerMakesOfIt) {
  const std::string document = R"({
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "loss_scale_window": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                  "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto",
                  "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}},
    "zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto",
      "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
      "sub_group_size": "auto", "offload_param": {"device": "auto"}}})";
  AutoValues values;
  values.micro_batch = 4;
  values.lr = 5e-5;
  values.total_steps = 100;
  values.precision = "bf16";
  values.stage = 3;
  values.offload_param = "none";
  ConfigEnvironment environment;
  environment.data_parallel_size = 8;
  environment.hidden_size = 100;
  const CheckedConfig checked = check_config(document, environment, automatic(values));
  EXPECT_TRUE(checked.accepted()) << testing::PrintToString(lines(checked));
  const struct {
    const char* path;
    Json value;
  } rows[] = {
      {"/train_batch_size", 32},
      {"/train_micro_batch_size_per_gpu", 4},
      {"/gradient_accumulation_steps", 1},
      {"/gradient_clipping", 1.0},
      {"/bf16/enabled", true},
      {"/fp16/enabled", false},
      {"/fp16/loss_scale_window", 1000},
      {"/optimizer/params/lr", 5e-5},
      {"/optimizer/params/betas", Json::array({0.9, 0.999})},
      {"/optimizer/params/eps", 1e-8},
      {"/optimizer/params/weight_decay", 0.0},
      {"/scheduler/params/warmup_min_lr", 0.0},
      {"/scheduler/params/warmup_max_lr", 5e-5},
      {"/scheduler/params/warmup_num_steps", 0},
      {"/scheduler/params/total_num_steps", 100},
      {"/zero_optimization/stage", 3},
      {"/zero_optimization/reduce_bucket_size", 10000},
      {"/zero_optimization/stage3_prefetch_bucket_size", 9000},
      {"/zero_optimization/stage3_param_persistence_threshold", 1000},
      {"/zero_optimization/sub_group_size", 1000000000},
      {"/zero_optimization/offload_param/device", "none"},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(at(checked, row.path), row.value) << row.path;
    EXPECT_EQ(checked.parsed.origins.at(row.path), "auto") << row.path;
  }
}

TEST(Check, AutoThatDecidesNeedsItsValue) {
  const CheckedConfig checked = check_config(
      R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": "auto"},
          "optimizer": {"type": "AdamW", "params": {"lr": "auto", "bias_correction": "auto"}},
          "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": "auto",
                        "warmup_num_steps": "auto", "cos_min_ratio": "auto"}}})",
      {}, automatic());
  EXPECT_THAT(lines(checked), ElementsAre(HasSubstr("auto /bf16/enabled: "),
                                          HasSubstr("auto /optimizer/params/lr: "),
                                          HasSubstr("auto /optimizer/params/bias_correction: "),
                                          HasSubstr("auto /scheduler/params/total_num_steps: "),
                                          HasSubstr("auto /scheduler/params/cos_min_ratio: ")));
}

TEST(Check, AutoOfOnePrecisionFollowsTheOther) {
  const CheckedConfig checked = check_config(
      R"({"train_batch_size": 1, "fp16": {"enabled": "auto"}, "bfloat16": {"enabled": true},
          "optimizer": {"type": "Adam"}})",
      {}, automatic());
  EXPECT_TRUE(checked.accepted());
  EXPECT_EQ(at(checked, "/fp16/enabled"), false);
  EXPECT_EQ(at(checked, "/bf16/enabled"), true);
}

TEST(Check, WithoutOptimizer) {
  const char* document = R"({"train_batch_size": 8})";
  ReadOptions strict;
  strict.require_optimizer = true;
  EXPECT_THAT(lines(check_config(document, {}, strict)),
              ElementsAre(HasSubstr("error /optimizer: missing")));
  EXPECT_THAT(lines(check_config(document, {}, automatic())),
              ElementsAre(HasSubstr("auto /optimizer: missing")));
  AutoValues values;
  values.lr = 2e-4;
  values.weight_decay = 0.1;
  const CheckedConfig checked = check_config(document, {}, automatic(values));
  EXPECT_TRUE(checked.accepted());
  EXPECT_EQ(at(checked, "/optimizer/type"), "AdamW");
  EXPECT_EQ(at(checked, "/optimizer/params/lr"), 2e-4);
  EXPECT_EQ(at(checked, "/optimizer/params/weight_decay"), 0.1);
  EXPECT_EQ(checked.parsed.origins.at("/optimizer/params/lr"), "auto");
  EXPECT_EQ(checked.parsed.origins.at("/optimizer/params/amsgrad"), "default");
}

constexpr const char* kLoose = R"({
  # how we trained it
  "_comment": "a run", "#note": 1, "//": "x",
  "train_batch_size": 8, // as always
  "run_label": "invented", "use_flash_attention": true,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.99,],}, "kind": "x"},
  "zero_optimization": {"stage": 1, "_why": "#,]"},
})";

TEST(Check, LenientReadingPassesOverRemarks) {
  const CheckedConfig checked = check_config(kLoose, {}, lenient());
  EXPECT_TRUE(checked.accepted()) << testing::PrintToString(lines(checked));
  EXPECT_THAT(lines(checked),
              ElementsAre(HasSubstr("ignored line 2, column 3: a comment that begins with #"),
                          HasSubstr("ignored line 6, column 76: a comma after the last item"),
                          HasSubstr("ignored line 6, column 78: a comma after"),
                          HasSubstr("ignored line 7, column 51: a comma after"),
                          "ignored /_comment: a comment", "ignored /#note: a comment",
                          HasSubstr("ignored /~1~1: a comment"), HasSubstr("ignored /run_label: "),
                          HasSubstr("ignored /use_flash_attention: "),
                          HasSubstr("ignored /optimizer/kind: "),
                          "ignored /zero_optimization/_why: a comment"));
  EXPECT_EQ(checked.parsed.warnings.size(), 11u);
  const CheckedConfig strict = check_config(kLoose);
  EXPECT_FALSE(strict.accepted());
  EXPECT_THAT(lines(strict)[0], HasSubstr("line 2, column 3: a comment that begins with #"));
}

TEST(Check, LenientReadingKeepsWhatCouldMeanSomething) {
  for (const char* more : {
           R"("optimzer": {})",                        // a typo
           R"("stage": 2)",                            // misplaced
           R"("fp16": {"invented": 1})",               // a typed section
           R"("zero_optimization": {"invented": 1})",  // another
           R"("optimizer": {"type": "Adam", "params": {"invented": 1}})",
           R"("sparse_attention": {})",  // changes results
       }) {
    const std::string document = std::string(R"({"train_batch_size": 8, )") + more + "}";
    EXPECT_FALSE(check_config(document, {}, lenient()).accepted()) << more;
  }
}

TEST(Check, BrokenJsonStaysBroken) {
  for (const char* text : {"{,}", "[,]", R"({"a": 1,,})", R"({"a" 1})", R"({"a": #"})", "#", "",
                           R"({"train_batch_size": 8, "seed": 1 "threads": 1})"}) {
    EXPECT_FALSE(check_config(text, {}, lenient()).accepted()) << text;
  }
  // Marks inside of strings are text.
  const CheckedConfig checked = check_config(
      R"({"train_batch_size": 8, "tensorboard": {"job_name": "#1,]\"//", "output_path": ",}"}})");
  EXPECT_TRUE(checked.accepted()) << testing::PrintToString(lines(checked));
  EXPECT_EQ(at(checked, "/tensorboard/job_name"), "#1,]\"//");
}

TEST(Check, ATrailingCommaIsCalledOne) {
  EXPECT_THAT(lines(check_config("{\"train_batch_size\": 8,\n}")),
              ElementsAre("error line 1, column 23: a comma after the last item; remove it, or "
                          "read leniently"));
}

// What a comment says is no part of the document.
TEST(Check, CommentsOfTwoSlashesAreSkippedWhole) {
  EXPECT_THAT(lines(check_config("{ // first, # then ]\n \"train_batch_size\": 8 // and 9,\n}")),
              IsEmpty());
}

TEST(Check, CommentsMaySpanLines) {
  EXPECT_THAT(lines(check_config("{ /* one, \n # two ] \n // */ \"train_batch_size\": 8 /**/ }")),
              IsEmpty());
}

TEST(Check, ValuesOverWhatIsNoObjectAreNotLookedAt) {
  ReadOptions how;
  how.set = {{"train_batch_size", 8}};
  EXPECT_THAT(lines(check_config("[8]", {}, how)), ElementsAre(HasSubstr("expected an object")));
}

TEST(Check, ShapesThatWidthsComeFromHaveAtMostEightSizes) {
  const auto with = [](size_t sizes) {
    const Json config = {
        {"train_batch_size", 8},
        {"optimizer",
         {{"type", "MuAdam"},
          {"params",
           {{"base_shapes", {{{"match", "a"}, {"shape", std::vector<int>(sizes, 2)}}}}}}}}};
    return lines(check_config(dump_json(config)));
  };
  EXPECT_THAT(with(8), IsEmpty());
  EXPECT_THAT(with(9), ElementsAre(HasSubstr("expected at most 8 items, got 9")));
}

TEST(Check, StudentsNameLayersOfTheirTeacher) {
  const auto with = [](const Json& layers) {
    const Json config = {{"train_batch_size", 8},
                         {"compression_training",
                          {{"layer_reduction", {{"enabled", true}, {"teacher_layer", layers}}}}}};
    return lines(check_config(dump_json(config)));
  };
  EXPECT_THAT(with(Json::array()), Contains(HasSubstr("/teacher_layer: missing")));
  EXPECT_THAT(with({1, 3}), Not(Contains(HasSubstr("/teacher_layer: missing"))));
}

// One that lacks an end is not said to begin behind it.
TEST(Check, DifficultiesRise) {
  const auto with = [](const Json& difficulties) {
    Json section = {{"enabled", true},
                    {"schedule_type", "fixed_linear"},
                    {"schedule_config", {{"total_curriculum_step", 10}, {"difficulty_step", 1}}}};
    section.update(difficulties);
    return lines(
        check_config(dump_json({{"train_batch_size", 8}, {"curriculum_learning", section}})));
  };
  EXPECT_THAT(with({{"min_difficulty", 9}, {"max_difficulty", 8}}),
              Contains(HasSubstr("9 is above max_difficulty 8")));
  EXPECT_THAT(with({{"min_difficulty", 8}, {"max_difficulty", 8}}),
              Not(Contains(HasSubstr("is above"))));
  for (const char* one : {"min_difficulty", "max_difficulty"}) {
    EXPECT_THAT(with({{one, 8}}), AllOf(Contains(HasSubstr("_difficulty: missing")),
                                        Not(Contains(HasSubstr("is above")))));
  }
  const Json metric = {{"min_difficulty", 8}};  // where none has to be given
  const Json sampling = {{"curriculum_learning", {{"curriculum_metrics", {{"m", metric}}}}}};
  EXPECT_THAT(lines(check_config(dump_json(
                  {{"train_batch_size", 8}, {"data_efficiency", {{"data_sampling", sampling}}}}))),
              Not(Contains(HasSubstr("is above"))));
}

TEST(Check, RatesByGroupAreAtMostAThousandOrSo) {
  const auto document = [](size_t groups) {
    const Json config = {{"train_batch_size", 8},
                         {"scheduler",
                          {{"type", "WarmupLR"},
                           {"params", {{"warmup_max_lr", std::vector<double>(groups, 0.125)}}}}}};
    return lines(check_config(dump_json(config)));
  };
  EXPECT_THAT(document(1024), ElementsAre(HasSubstr("1024 rates for 1 group")));
  EXPECT_THAT(document(1025), ElementsAre(AllOf(HasSubstr("/scheduler/params/warmup_max_lr"),
                                                Not(HasSubstr("for 1 group")))));
}

TEST(Check, ColumnsAreChosenNoMoreOftenThanAllAreUpdated) {
  const auto with = [](const Json& zenflow) {
    const Json config = {
        {"train_batch_size", 8},
        {"bf16", {{"enabled", true}}},
        {"optimizer", {{"type", "AdamW"}}},
        {"zero_optimization",
         {{"stage", 2}, {"offload_optimizer", {{"device", "cpu"}}}, {"zenflow", zenflow}}}};
    return lines(check_config(dump_json(config)));
  };
  EXPECT_THAT(with({{"select_strategy", "step"}, {"select_interval", 4}, {"update_interval", 4}}),
              IsEmpty());
  EXPECT_THAT(with({{"select_strategy", "step"}, {"select_interval", 3}, {"update_interval", 4}}),
              ElementsAre(HasSubstr("3 is below update_interval 4")));
  // Epochs are no steps.
  EXPECT_THAT(with({{"select_strategy", "epoch"}, {"select_interval", 1}, {"update_interval", 4}}),
              IsEmpty());
  EXPECT_THAT(
      with({{"select_strategy", "step"}, {"select_interval", 3}, {"update_interval", "auto"}}),
      IsEmpty());
}

TEST(Check, GathersByNodeNeedAShardGroup) {
  for (const int shard : {-1, 0}) {
    const Json config = {
        {"train_batch_size", 8},
        {"zero_optimization",
         {{"stage", 3}, {"mics_shard_size", shard}, {"mics_hierarchical_params_gather", true}}}};
    EXPECT_THAT(lines(check_config(dump_json(config))),
                Contains(HasSubstr("needs mics_shard_size")))
        << shard;
  }
}

// Neither defaults nor what follows from other values were asked for.
TEST(Check, TheDocumentGivenBackIsWhatWasAskedFor) {
  const CheckedConfig checked = check_config(
      R"({"train_batch_size": 8, "gradient_clipping": 0.5, "bf16": {"enabled": true}})");
  EXPECT_EQ(
      given_document(checked.parsed),
      (Json{{"train_batch_size", 8}, {"gradient_clipping", 0.5}, {"bf16", {{"enabled", true}}}}));
}

TEST(Check, AFileNameIsCalledOne) {
  for (const char* text : {"ds_config.json", "/etc/ds.json", "configs/zero3"}) {
    EXPECT_THAT(lines(check_config(text)), ElementsAre(HasSubstr("the name of a file")));
  }
}

TEST(Check, ValuesSetOverTheDocument) {
  ReadOptions how;
  how.set = {{"/optimizer/params/lr", 0.5},
             {"zero_optimization.stage", 2},
             {"bf16.enabled", true},
             {"scheduler", {{"type", "WarmupLR"}}},
             {"/optimizer/param_groups/0/lr", 0.25}};
  const CheckedConfig checked = check_config(
      R"({"train_batch_size": 8, "bfloat16": {"enabled": false}, "zero_optimization": {"stage": 1},
          "optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": 1e-6},
                        "param_groups": [{"name": "a", "match": "b"}]}})",
      {}, how);
  EXPECT_TRUE(checked.accepted()) << testing::PrintToString(lines(checked));
  EXPECT_EQ(at(checked, "/optimizer/params/lr"), 0.5);
  EXPECT_EQ(at(checked, "/optimizer/params/eps"), 1e-6);
  EXPECT_EQ(at(checked, "/optimizer/param_groups")[0]["lr"], 0.25);
  EXPECT_EQ(at(checked, "/zero_optimization/stage"), 2);
  EXPECT_EQ(at(checked, "/bf16/enabled"), true);
  EXPECT_EQ(at(checked, "/scheduler/type"), "WarmupLR");
  EXPECT_EQ(checked.parsed.origins.at("/optimizer/params/lr"), "set");
  EXPECT_EQ(checked.parsed.origins.at("/bf16/enabled"), "set");
  EXPECT_EQ(checked.parsed.origins.at("/scheduler/type"), "set");
  EXPECT_EQ(checked.parsed.origins.at("/optimizer/params/eps"), "given");

  how.set = {{"train_batch_size.x", 1}};
  EXPECT_THAT(lines(check_config(R"({"train_batch_size": 8})", {}, how)),
              ElementsAre(HasSubstr("train_batch_size.x: cannot be set")));
  how.set = {{"optimizer.lr", 1}};
  EXPECT_THAT(
      lines(check_config(R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}})", {}, how)),
      ElementsAre(HasSubstr("/optimizer/lr: unknown key; it belongs at "
                            "/optimizer/params/lr")));
}

// What people publish and DeepSpeed 0.19 reads.
TEST(Check, LegalDocumentsAreAccepted) {
  for (const char* more : {
           R"("zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}})",
           R"("zero_optimization": {"stage": 2, "offload_param": {"device": "nvme",
              "nvme_path": "/x"}})",
           R"("optimizer": {"type": "Adam", "params": {"torch_adam": true, "set_grad_none": true,
              "foreach": false}})",
           R"("activation_checkpointing": {"partition_activations": true, "profile": true,
              "contiguous_memory_optimization": true})",
           R"("aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1,
              "single_submit": true})",
           R"("zero_optimization": {"compute_grad_norm": false, "parameter_alignment": 8})",
           R"("data_types": {"keep_in_fp32_modules": [], "grad_accum_dtype": "torch.bfloat16"})",
           R"("disable_python_gc": true, "disable_allgather": true, "steps_per_print": 0)",
           R"("compile": {"autoep_non_moe": true, "offload_activation_pin_memory": false})",
           R"("scheduler": {"type": "WarmupLR", "params": {"last_batch_iteration": -1}})",
           R"("gradient_clipping": null, "fp16": {"hysteresis": 0})",
           R"("fp16": {"enabled": "true", "loss_scale_window": "1000", "auto_cast": "no"})",
           R"("zero_optimization": {"stage": "2", "reduce_bucket_size": "500000000"})",
           R"("communication_data_type": "torch.float16")",
       }) {
    const CheckedConfig checked =
        check_config(std::string(R"({"train_batch_size": 8, )") + more + "}");
    EXPECT_TRUE(checked.accepted()) << more << "\n" << testing::PrintToString(lines(checked));
  }
}

TEST(Check, TextInTypedSectionsMeansItsValue) {
  const Config config = load_config(
      R"({"train_batch_size": 8, "gradient_clipping": null, "bf16": {"enabled": "True"},
          "zero_optimization": {"stage": "1", "reduce_bucket_size": "600", "overlap_comm": "off"}})");
  EXPECT_EQ(config.precision.compute, Precision::kBf16);
  EXPECT_EQ(config.zero.stage, 1);
  EXPECT_EQ(config.zero.reduce_bucket_size, 600);
  EXPECT_FALSE(config.zero.overlap_comm);
  EXPECT_EQ(config.gradient_clipping, 0);
  // Nowhere else, and nothing else.
  for (const char* more :
       {R"("train_batch_size": "8")", R"("train_batch_size": 8, "fp16": {"enabled": "maybe"})",
        R"("train_batch_size": 8, "zero_optimization": {"stage": "one"})",
        R"("train_batch_size": 8, "zero_optimization": {"reduce_bucket_size": "5e8 "})"}) {
    EXPECT_FALSE(check_config(std::string("{") + more + "}").accepted()) << more;
  }
}

TEST(Check, OffloadThatHasNoEffectIsAcceptedWithAWarning) {
  const CheckedConfig checked =
      check_config(R"({"train_batch_size": 8, "zero_optimization": {"stage": 0,
                       "offload_optimizer": {"device": "cpu", "ratio": 0.3}}})");
  EXPECT_TRUE(checked.accepted());
  EXPECT_THAT(checked.parsed.warnings,
              testing::Contains(HasSubstr("offload_optimizer/device: has no effect at ZeRO stage "
                                          "0")));
}

TEST(Check, ActivationsInFilesNeedAFolder) {
  const auto check = [](const char* keys) {
    return check_config(
        str_cat(R"({"train_batch_size": 8, "activation_checkpointing": )", keys, "}"));
  };
  const CheckedConfig nowhere = check(R"({"enabled": true, "nvme_checkpointing": true})");
  ASSERT_EQ(nowhere.parsed.problems.size(), 1u);
  EXPECT_THAT(
      nowhere.parsed.problems[0].message(),
      HasSubstr("/activation_checkpointing/nvme_path: nvme_checkpointing needs the folder"));
  EXPECT_TRUE(
      check(R"({"enabled": true, "nvme_checkpointing": true, "nvme_path": "/x"})").accepted());
  const CheckedConfig idle = check(R"({"nvme_checkpointing": true})");
  EXPECT_TRUE(idle.accepted());
  EXPECT_THAT(idle.parsed.warnings, testing::Contains(HasSubstr("has no effect until")));
}

TEST(Check, WeightsInFilesNeedAFolderAndStageThree) {
  const auto check = [](const char* zero) {
    return check_config(str_cat(R"({"train_batch_size": 8, "zero_optimization": )", zero, "}"));
  };
  const CheckedConfig nowhere = check(R"({"stage": 3, "offload_param": {"device": "nvme"}})");
  ASSERT_EQ(nowhere.parsed.problems.size(), 1u);
  EXPECT_THAT(
      nowhere.parsed.problems[0].message(),
      HasSubstr("/zero_optimization/offload_param/nvme_path: device nvme needs the folder"));
  const CheckedConfig below = check(R"({"stage": 2, "offload_param": {"device": "nvme"}})");
  EXPECT_TRUE(below.accepted());
  EXPECT_THAT(below.parsed.warnings,
              testing::Contains(HasSubstr("has no effect below ZeRO stage 3")));
}

TEST(Check, TheWorldThatFits) {
  const char* document = R"({"train_batch_size": 1024, "train_micro_batch_size_per_gpu": 4,
                             "gradient_accumulation_steps": 2})";
  EXPECT_THAT(lines(check_config(document)), ElementsAre(HasSubstr("these sizes fit 128 ranks")));
  ConfigEnvironment environment;
  environment.fit_world = true;
  const CheckedConfig checked = check_config(document, environment);
  EXPECT_TRUE(checked.accepted());
  EXPECT_EQ(checked.batch.data_parallel, 128);
}

// Advice points only where the value would be accepted.
TEST(Check, AdviceLeadsSomewhere) {
  const auto first = [](const char* document) { return lines(check_config(document)).front(); };
  EXPECT_THAT(first(R"({"train_batch_size": 8, "max_grad_norm": 1.0})"),
              HasSubstr("it belongs at /gradient_clipping"));
  EXPECT_THAT(first(R"({"train_batch_size": 8, "_comment": "x"})"),
              testing::Not(HasSubstr("comet")));
  EXPECT_THAT(first(R"({"train_batch_size": 8, "tp_size": 2})"),
              testing::Not(HasSubstr("belongs at")));
  EXPECT_THAT(first(R"({"train_batch_size": 8, "optimizer": {"type": "FusedLamb"}})"),
              testing::Not(HasSubstr("OneBit")));
}

// Strict reading of the document that a check gives back means the same.
TEST(Check, TheDocumentGivenBackMeansTheSame) {
  AutoValues values;
  values.lr = 1e-4;
  values.precision = "fp16";
  values.total_steps = 10;
  values.micro_batch = 2;
  ReadOptions how = automatic(values);
  how.lenient = true;
  how.set = {{"seed", 5}};
  for (const char* document :
       {kLoose, R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
                    "fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 3,
                    "zero_quantized_gradients": true, "zeropp_loco_param": {}}})",
        R"({"train_batch_size": 4, "gradient_clipping": null,
            "zero_optimization": {"stage": 1, "cpu_offload": true},
            "optimizer": {"type": "SGD", "params": {"momentum": 0.9}},
            "zero_allow_untested_optimizer": true, "amp": {"enabled": false, "x": [1]}})"}) {
    const CheckedConfig checked = check_config(document, {}, how);
    ASSERT_TRUE(checked.accepted()) << testing::PrintToString(lines(checked));
    const Json given = given_document(checked.parsed);
    const CheckedConfig again = check_config(dump_json(given));
    EXPECT_TRUE(again.accepted()) << dump_json(given, 2) << testing::PrintToString(lines(again));
    EXPECT_EQ(dump_json(again.parsed.values, 1), dump_json(checked.parsed.values, 1));
    EXPECT_EQ(dump_json(given_document(again.parsed)), dump_json(given));
  }
}

}  // namespace
}  // namespace ds
