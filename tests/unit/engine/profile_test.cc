// What an engine tells about its steps: the FLOPS profile, throughput, memory, monitors.
#include <gmock/gmock.h>

#include <fstream>

#include "base/log.h"
#include "engine_world.h"

namespace ds {
namespace {

using namespace engine_test;  // NOLINT
using ::testing::HasSubstr;
using ::testing::Not;

std::string slurp(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The library's log while it lives.
class CapturedLog {
 public:
  CapturedLog() {
    log_set_level(LogLevel::kInfo);
    log_set_sink(
        [](void* self, int32_t, const char*, const char* text) {
          static_cast<CapturedLog*>(self)->text_ += std::string(text) + "\n";
        },
        this, nullptr);
  }
  ~CapturedLog() {
    log_set_sink(nullptr, nullptr, nullptr);
    log_set_level(LogLevel::kWarning);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Micro batches of 4 sequences of 16 tokens, 2 of them in a step; see base_config, model_config.
constexpr int64_t kTokens = 4 * 16 * 2, kWidth = 32, kLayers = 2, kVocab = 61;
constexpr int64_t kMatrices = kLayers * 12 * kWidth * kWidth + kVocab * kWidth;
constexpr int64_t kAttention = kLayers * 8 * (16 * 17 / 2) * 2 * kWidth;

TEST(EngineProfile, TheStepThatWasAskedForIsProfiled) {
  const Folder folder;
  const std::string file = folder.path("deep/profile.txt");
  const auto engine = make_engine(
      with(base_config(),
           {{"flops_profiler", {{"enabled", true}, {"profile_step", 1}, {"output_file", file}}}}));
  EXPECT_TRUE(engine->config().wall_clock_breakdown);
  engine->train_batch();
  EXPECT_TRUE(engine->profile().is_null());
  EXPECT_FALSE(fs::exists(file));
  const StepReport report = engine->train_batch();
  const Json profile = engine->profile();
  engine->train_batch();
  EXPECT_EQ(engine->profile(), profile);

  EXPECT_EQ(profile.at("step"), 1);
  EXPECT_EQ(profile.at("micro_batches"), 2);
  EXPECT_EQ(profile.at("samples"), 8);
  EXPECT_EQ(profile.at("tokens"), kTokens);
  const Json& totals = profile.at("totals");
  EXPECT_EQ(totals.at("parameters"), engine->model()->parameters().elements());
  EXPECT_EQ(totals.at("forward").at("macs"), kTokens * kMatrices + kAttention);
  EXPECT_EQ(totals.at("backward").at("macs"), 2 * (kTokens * kMatrices + kAttention));
  EXPECT_EQ(totals.at("recompute").at("calls"), 0);
  const Json& seconds = profile.at("seconds");
  EXPECT_LE(totals.at("forward").at("seconds"), seconds.at("forward"));
  EXPECT_LE(totals.at("backward").at("seconds"), seconds.at("backward"));
  EXPECT_GT(totals.at("forward").at("seconds"), 0);
  EXPECT_LE(seconds.at("total"), report.seconds);

  const std::string text = slurp(file);
  EXPECT_THAT(text, HasSubstr("Profile Summary at step 1:"));
  EXPECT_THAT(text, HasSubstr("h.*.mlp"));
  EXPECT_THAT(text, HasSubstr("Detailed Profile"));
}

TEST(EngineProfile, TrainingIsTheSameBitsWithAndWithout) {
  const Json config = with(base_config(), {{"activation_checkpointing", {{"enabled", true}}}});
  const auto plain = make_engine(config);
  const auto profiled =
      make_engine(with(config, {{"flops_profiler", {{"enabled", true}, {"profile_step", 0}}}}));
  for (int i = 0; i < 2; ++i) {
    plain->train_batch();
    profiled->train_batch();
  }
  EXPECT_TRUE(same_bits(weights(*plain), weights(*profiled)));
  const Json& totals = profiled->profile().at("totals");
  EXPECT_GT(totals.at("recompute").at("macs"), 0);
  EXPECT_LT(totals.at("recompute").at("macs"), totals.at("forward").at("macs"));
}

TEST(EngineProfile, AReportThatCannotBeWrittenGoesToTheLog) {
  CapturedLog log;
  const auto engine =
      make_engine(with(base_config(), {{"flops_profiler",
                                        {{"enabled", true},
                                         {"profile_step", 0},
                                         {"detailed", false},
                                         {"output_file", "/proc/no-such-folder/profile.txt"}}}}));
  EXPECT_TRUE(engine->train_batch().applied);
  EXPECT_THAT(log.text(), HasSubstr("the profile goes to the log"));
  EXPECT_THAT(log.text(), HasSubstr("Profile Summary at step 0:"));
  EXPECT_THAT(log.text(), Not(HasSubstr("Detailed Profile")));
}

TEST(EngineMetrics, LogHasThroughputAndMemoryOfTheStep) {
  CapturedLog log;
  const auto engine =
      make_engine(with(base_config(), {{"steps_per_print", 3}, {"memory_breakdown", true}}));
  const int64_t before = engine->memory_report().at("total").at("peak");
  for (int i = 0; i < 3; ++i) engine->train_batch();
  EXPECT_THAT(log.text(), HasSubstr("step 3, skipped 0"));
  EXPECT_THAT(log.text(), HasSubstr(" samples/s (average "));
  EXPECT_THAT(log.text(), HasSubstr(" tokens/s (average "));
  EXPECT_THAT(log.text(), HasSubstr(" TFLOPS by 6N, "));
  EXPECT_THAT(log.text(), HasSubstr(" by Megatron's formula"));
  EXPECT_THAT(log.text(), HasSubstr("(now / peak of the step / peak)"));
  EXPECT_THAT(log.text(), HasSubstr("  activations: "));
  // Peaks of single steps do not lower those of the whole run.
  const Json memory = engine->memory_report();
  EXPECT_GE(memory.at("total").at("peak"), before);
  EXPECT_GT(memory.at("tags").at("activations").at("peak"), 0);
}

TEST(EngineMetrics, MonitorsGetEveryTag) {
  const Folder folder;
  const Json monitor = {{"enabled", true}, {"output_path", folder.path()}, {"job_name", "job"}};
  const Json config =
      with(base_config(),
           {{"wall_clock_breakdown", true},
            {"memory_breakdown", true},
            {"jsonl_monitor", monitor},
            {"wandb", {{"enabled", true}, {"output_path", folder.path()}, {"project", "p"}}}});
  {
    const auto engine = make_engine(config);
    engine->train_batch();
    engine->evaluate(*periodic_data(), 2);
    engine->save(folder.path("checkpoint"), "");
  }
  const std::string lines = slurp(folder.path("job/metrics.jsonl"));
  const Json step = parse_json(lines.substr(0, lines.find('\n')), "line", Code::kCorrupt);
  for (const char* tag :
       {"train_loss", "lr", "loss_scale", "grad_norm", "samples_per_second", "tokens_per_second",
        "tflops", "tflops_megatron", "memory_peak_bytes", "elapsed_time_ms_forward",
        "elapsed_time_ms_backward", "elapsed_time_ms_backward_inner", "elapsed_time_ms_step"}) {
    EXPECT_TRUE(step.contains(str_cat("Train/Samples/", tag))) << tag;
  }
  EXPECT_EQ(step.at("step"), 1);
  EXPECT_EQ(step.at("samples"), 8);
  const double ratio = step.at("Train/Samples/tokens_per_second").get<double>() /
                       step.at("Train/Samples/samples_per_second").get<double>();
  EXPECT_NEAR(ratio, 16, 1e-9);
  EXPECT_THAT(lines, HasSubstr("Train/Samples/eval_loss"));

  int runs = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path("wandb"))) {
    if (entry.path().extension() != ".wandb") continue;
    ++runs;
    const std::string bytes = slurp(entry.path());
    EXPECT_THAT(bytes, HasSubstr("Train/Samples/train_loss"));
    EXPECT_THAT(bytes, HasSubstr("train_micro_batch_size_per_gpu"));
  }
  EXPECT_EQ(runs, 1);
}

TEST(EngineMetrics, ThroughputCanBeTurnedOff) {
  const Folder folder;
  const auto engine = make_engine(with(
      base_config(), {{"timers", {{"throughput", {{"enabled", false}}}}},
                      {"jsonl_monitor",
                       {{"enabled", true}, {"output_path", folder.path()}, {"job_name", "job"}}}}));
  engine->train_batch();
  EXPECT_THAT(slurp(folder.path("job/metrics.jsonl")), Not(HasSubstr("per_second")));
}

}  // namespace
}  // namespace ds
