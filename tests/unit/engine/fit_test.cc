// The fastest variant that fits, from rates that are given.
#include "engine/plan_fit.h"

#include <set>

#include "engine/plan.h"
#include "engine_world.h"

namespace ds::engine_test {
namespace {

Json shape(int64_t positions = 64) {
  return {{"model_type", "gpt2"}, {"vocab_size", 512}, {"n_positions", positions},
          {"n_embd", 128},        {"n_layer", 4},      {"n_head", 4}};
}
Json config() {
  return {{"train_micro_batch_size_per_gpu", 8},
          {"gradient_accumulation_steps", 2},
          {"threads", 1},
          {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}}};
}
Json rates(double disk = 1e9) {
  return {{"product_flops", 1e11}, {"memory_bytes", 1e10}, {"read_bytes", disk},
          {"write_bytes", disk},   {"near_bytes", 1e9},    {"far_bytes", 1e8}};
}

Json fit(const Json& given, int64_t memory, const Json& speeds = rates(), int world = 1,
         int64_t positions = 64) {
  PlanOptions options;
  options.on_gpu = false;
  options.world = world;
  PlanQuestion question;
  question.fit = true;
  question.memory = memory;
  question.disk = int64_t{1} << 40;
  question.rates = speeds;
  const Folder folder;
  question.folder = folder.path();
  return plan_training(shape(positions), dump_json(given), options, question);
}

int64_t samples(const Json& chosen, int world = 1) {
  return chosen.at("train_micro_batch_size_per_gpu").get<int64_t>() *
         chosen.at("gradient_accumulation_steps").get<int64_t>() * world;
}

// Every byte more opens faster variants, never slower ones, and each fits.
TEST(Fit, LessMemoryIsNeverFaster) {
  double slowest = 0;
  std::set<std::string> seen;
  for (const int64_t memory : {200 << 20, 40 << 20, 25 << 20, 15 << 20, 10 << 20, 9 << 20}) {
    const Json plan = fit(config(), memory);
    const Json& chosen = plan["fit"];
    EXPECT_LE(plan["memory_per_rank"]["reserved"].get<double>() * 1.05, memory);
    EXPECT_EQ(samples(chosen["config"]), 16) << "the batch is another one";
    EXPECT_EQ(chosen["config"]["optimizer"], config()["optimizer"]);
    const double seconds = chosen["seconds_per_step"]["total"];
    EXPECT_GE(seconds, slowest);
    slowest = seconds;
    seen.insert(dump_json(chosen["changes"]));
  }
  EXPECT_GE(seen.size(), 3U);
}

TEST(Fit, RoomForAllLeavesNothingInFiles) {
  const Json plan = fit(config(), int64_t{1} << 32);
  EXPECT_FALSE(plan.contains("files_per_rank"));
  EXPECT_EQ(plan["fit"]["changes"]["activation_checkpointing"]["enabled"], false);
}

// A slow disk makes what needs it less attractive than computing again.
TEST(Fit, RatesDecide) {
  constexpr int64_t kPositions = 512;  // activations of many of the system's blocks
  const auto needed = [](const Json& change) {
    PlanOptions options;
    options.on_gpu = false;
    const Json smallest = with(config(), {{"train_micro_batch_size_per_gpu", 1}});
    return plan_training(shape(kPositions), dump_json(with(smallest, change)),
                         options)["memory_per_rank"]["reserved"]
        .get<double>();
  };
  // In memory it fits with checkpoints alone.
  const double kept = needed(Json::object());
  const double again = needed({{"activation_checkpointing", {{"enabled", true}}}});
  ASSERT_LT(again * 1.02, kept);
  const auto memory = static_cast<int64_t>((kept + again) / 2 * 1.05);
  const auto in_files = [&](double disk) {
    return fit(config(), memory, rates(disk), 1, kPositions).contains("files_per_rank");
  };
  EXPECT_TRUE(in_files(1e12));
  EXPECT_FALSE(in_files(1e6));
}

// A GPU that is too small leaves state to the host's memory, and that to files.
TEST(Fit, AGpuLeavesStateToTheHostAndTheHostToFiles) {
  PlanOptions options;
  options.on_gpu = true;
  PlanQuestion question;
  question.fit = true;
  question.disk = int64_t{1} << 40;
  question.rates = rates();
  const Folder folder;
  question.folder = folder.path();
  const auto devices = [&](int64_t gpu, int64_t host) {
    question.gpu_memory = gpu;
    question.memory = host;
    const Json plan = plan_training(shape(), dump_json(config()), options, question);
    EXPECT_LE(plan["memory_per_rank"]["total"].get<double>() * 1.05, gpu);
    const Json zero = plan["fit"]["config"]["zero_optimization"];
    const auto device = [&](const char* key) {
      return zero.contains(key) ? zero[key].value("device", "none") : "none";
    };
    return std::pair(device("offload_optimizer"), device("offload_param"));
  };
  using Devices = std::pair<std::string, std::string>;
  constexpr int64_t kMiB = int64_t{1} << 20;
  EXPECT_EQ(devices(1024 * kMiB, 1024 * kMiB), Devices("none", "none"));
  const Json whole = plan_training(
      shape(), dump_json(with(config(), {{"train_micro_batch_size_per_gpu", 1}})), options);
  const auto needed = whole["memory_per_rank"]["total"].get<int64_t>();
  EXPECT_EQ(devices(needed * 3 / 4, 1024 * kMiB).first, "cpu");
  EXPECT_EQ(devices(needed * 3 / 4, 8 * kMiB).first, "nvme");
}

TEST(Fit, SeveralRanksSpreadState) {
  const Json plan = fit(config(), 12 << 20, rates(), 4);
  EXPECT_GE(plan["stage"], 2);
  EXPECT_GT(plan["fit"]["seconds_per_step"]["collectives"], 0);
}

TEST(Fit, NothingFits) {
  const std::string message = error_of(Code::kOutOfMemory, [] { fit(config(), 100'000); });
  EXPECT_NE(message.find("none fits"), std::string::npos) << message;
}

// Rates of this machine, in the folder of the files.
TEST(Fit, MeasuredRatesAreNumbers) {
  const Json plan = fit(config(), 16 << 20, Json::object());
  for (const char* name :
       {"product_flops", "pass_flops", "memory_bytes", "read_bytes", "write_bytes"}) {
    EXPECT_GT(plan["fit"]["rates"][name].get<double>(), 0) << name;
  }
}

// Of passes counts what is given of them, else what is given of products.
TEST(Fit, PassesCountByTheirOwnRate) {
  const auto compute = [](const Json& speeds) {
    return fit(config(), int64_t{1} << 32, speeds)["fit"]["seconds_per_step"]["compute"]
        .get<double>();
  };
  const double products = compute(rates());
  EXPECT_DOUBLE_EQ(compute(with(rates(), {{"pass_flops", 1e11}})), products);
  EXPECT_DOUBLE_EQ(compute(with(rates(), {{"pass_flops", 2.5e10}})), 4 * products);
}

// Models whose passes cannot be timed, such as those of which only the size is known, and layers of
// experts, of which a token's own count.
TEST(Fit, EveryKindOfModelHasARate) {
  PlanOptions options;
  options.on_gpu = false;
  options.sequence_length = 32;
  PlanQuestion question;
  question.fit = true;
  question.memory = int64_t{1} << 32;
  const Json experts = with(shape(64), {{"model_type", "gpt_moe"}, {"num_experts", 4}});
  for (const Json& model : {Json{{"parameters", 100'000}, {"layers", 2}}, shape(64), experts}) {
    const Json plan = plan_training(model, dump_json(config()), options, question);
    EXPECT_GT(plan["fit"]["rates"]["pass_flops"].get<double>(), 0);
    EXPECT_GT(plan["fit"]["seconds_per_step"]["compute"].get<double>(), 0);
  }
}

}  // namespace
}  // namespace ds::engine_test
