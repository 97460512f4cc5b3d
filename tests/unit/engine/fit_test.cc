// The fastest variant that fits, from rates that are given.
#include "engine/plan_fit.h"

#include <cmath>
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
         const Json& model = shape()) {
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
  return plan_training(model, dump_json(given), options, question);
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
    return fit(config(), memory, rates(disk), 1, shape(kPositions)).contains("files_per_rank");
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

// ---- a share of the optimizer's state ----

constexpr double kStep = 0.05;  // of shares that are considered

double share_of(const Json& config) {
  return config["zero_optimization"]["offload_optimizer"].value("ratio", 1.0);
}

Json with_share(const Json& config, double share) {
  return with(config, {{"zero_optimization", {{"offload_optimizer", {{"ratio", share}}}}}});
}

// Computing again and small micro batches cost more than the disk, so that the state goes there
// first.
Json slow_passes() { return with(rates(), {{"product_flops", 1e8}, {"pass_flops", 1e8}}); }
Json one_pass() {
  return with(config(),
              {{"train_micro_batch_size_per_gpu", 1}, {"gradient_accumulation_steps", 1}});
}

// Of which a twentieth is more than the blocks that memory is taken in.
Json wide() { return with(shape(), {{"n_embd", 320}}); }

Json plan_of(const Json& given, bool on_gpu) {
  PlanOptions options;
  options.on_gpu = on_gpu;
  return plan_training(wide(), dump_json(given), options);
}

// Of a limit the least share that leaves 5 %: what the next smaller one needs is more.
TEST(Fit, NoMoreGoesToFilesThanHasTo) {
  const auto reserved = [](const Json& given) {
    return plan_of(given, false)["memory_per_rank"]["reserved"].get<double>();
  };
  const Json whole = fit(one_pass(), int64_t{1} << 32, slow_passes(), 1, wide());
  const double most = whole["memory_per_rank"]["reserved"];
  double last_share = 0, last_seconds = whole["fit"]["seconds_per_step"]["total"];
  for (const double part : {0.95, 0.85, 0.75, 0.65, 0.55}) {
    SCOPED_TRACE(part);
    const auto limit = static_cast<int64_t>(part * most * 1.05);
    const Json plan = fit(one_pass(), limit, slow_passes(), 1, wide());
    const Json& chosen = plan["fit"]["config"];
    ASSERT_EQ(chosen["zero_optimization"]["offload_optimizer"]["device"], "nvme");
    const double share = share_of(chosen);
    EXPECT_NEAR(share / kStep, std::round(share / kStep), 1e-9);
    EXPECT_GT(share, last_share);
    EXPECT_LT(share, 1);
    EXPECT_LE(reserved(chosen) * 1.05, static_cast<double>(limit));
    const double less = share - kStep;
    const Json smaller = less > kStep / 2 ? with_share(chosen, less) : one_pass();
    EXPECT_GT(reserved(smaller) * 1.05, static_cast<double>(limit));
    // Rates say what that costs: moments of 8 bytes tell how many elements are in files. The norm
    // reads gradients before the update does, masters and moments are read and written.
    const Json& seconds = plan["fit"]["seconds_per_step"];
    const double elements = plan["files_per_rank"]["optimizer"].get<double>() / 8;
    EXPECT_NEAR(seconds["files"].get<double>(), elements * (12 + 2 * 4 + 12 + 4) / 1e9, 1e-6);
    EXPECT_GT(seconds["total"].get<double>(), last_seconds);
    last_seconds = seconds["total"];
    last_share = share;
  }
}

// It trains within what is planned, and that within the limit.
TEST(Fit, AChosenShareTrainsAsPlanned) {
  const double most =
      fit(one_pass(), int64_t{1} << 32, slow_passes(), 1, wide())["memory_per_rank"]["total"];
  const auto limit = static_cast<int64_t>(0.75 * most * 1.05);
  const Folder folder;
  const Json plan = fit(one_pass(), limit, slow_passes(), 1, wide());
  Json chosen = plan["fit"]["config"];
  ASSERT_LT(share_of(chosen), 1);
  chosen["zero_optimization"]["offload_optimizer"]["nvme_path"] = folder.path();
  const auto model = models::Model::create(wide(), 1);
  Engine engine(dump_json(chosen), model, nullptr);
  MicroBatch batch;
  batch.ids = batch.labels = ids_tensor(std::vector<int64_t>(64, 1), 1);
  for (int step = 0; step < 3; ++step) {
    engine.backward(engine.forward(batch));
    engine.step();
  }
  const auto peak = static_cast<double>(model->device()->account().total_peak());
  const auto planned = plan["memory_per_rank"]["total"].get<double>();
  EXPECT_NEAR(planned / peak, 1, 0.05);
  EXPECT_LE(peak, static_cast<double>(limit));
}

// Whatever was said of a share, another one may be the fastest; without offload none is left.
TEST(Fit, AGivenShareDoesNotBind) {
  const double most =
      fit(one_pass(), int64_t{1} << 32, slow_passes(), 1, wide())["memory_per_rank"]["reserved"];
  const auto limit = static_cast<int64_t>(0.8 * most * 1.05);
  const Json files = {
      {"zero_optimization",
       {{"stage", 1}, {"offload_optimizer", {{"device", "nvme"}, {"nvme_path", "/"}}}}}};
  const double wanted =
      share_of(fit(with(one_pass(), files), limit, slow_passes(), 1, wide())["fit"]["config"]);
  for (const double given : {0.1, 0.95}) {
    const Json said = with_share(with(one_pass(), files), given);
    EXPECT_EQ(share_of(fit(said, limit, slow_passes(), 1, wide())["fit"]["config"]), wanted);
    const Json roomy = fit(said, int64_t{1} << 32, slow_passes(), 1, wide())["fit"]["config"];
    EXPECT_FALSE(roomy["zero_optimization"].contains("offload_optimizer"));
  }
}

// A disk that has no room for all of the state may have some for what has to be there.
TEST(Fit, ASmallDiskTakesAShare) {
  PlanOptions options;
  options.on_gpu = false;
  PlanQuestion question;
  question.fit = true;
  question.rates = slow_passes();
  const Json whole = plan_of(one_pass(), false)["memory_per_rank"];
  question.memory = static_cast<int64_t>(whole["reserved"].get<double>() * 0.8 * 1.05);
  question.disk = whole["model_states"].get<int64_t>() * 3 / 4;
  const Folder folder;
  question.folder = folder.path();
  const Json plan = plan_training(wide(), dump_json(one_pass()), options, question);
  EXPECT_LT(share_of(plan["fit"]["config"]), 0.75);
  EXPECT_LE(plan["files_per_rank"]["total"].get<int64_t>(), *question.disk);
}

// What a GPU has room for stays there, and is updated while the host updates the rest.
TEST(Fit, AGpuKeepsWhatItHasRoomFor) {
  const Json given = with(one_pass(), {{"zero_optimization", {{"reduce_bucket_size", 200000}}}});
  PlanOptions options;
  options.on_gpu = true;
  PlanQuestion question;
  question.fit = true;
  question.disk = 1;
  question.memory = int64_t{1} << 32;
  question.rates = with(slow_passes(), {{"gpu_memory_bytes", 4e10}});
  const auto total = [](const Json& one) {
    return plan_of(one, true)["memory_per_rank"]["total"].get<double>();
  };
  const double whole = total(given);
  for (const double part : {0.9, 0.8, 0.7}) {
    SCOPED_TRACE(part);
    question.gpu_memory = static_cast<int64_t>(part * whole * 1.05);
    const auto limit = static_cast<double>(*question.gpu_memory);
    const Json plan = plan_training(wide(), dump_json(given), options, question);
    const Json& chosen = plan["fit"]["config"];
    ASSERT_EQ(chosen["zero_optimization"]["offload_optimizer"]["device"], "cpu");
    const double share = share_of(chosen);
    ASSERT_LT(share, 1);
    EXPECT_LE(total(chosen) * 1.05, limit);
    const Json smaller = share > 1.5 * kStep ? with_share(chosen, share - kStep) : given;
    EXPECT_GT(total(smaller) * 1.05, limit);
    // 30 bytes of memory for each element, of the host 1e10 a second.
    const double host = plan["host_memory_per_rank"]["optimizer"].get<double>() / 8;
    const double device = plan["memory_per_rank"]["optimizer"].get<double>() / 8;
    EXPECT_NEAR(plan["fit"]["seconds_per_step"]["update"].get<double>(),
                30 * std::max(host / 1e10, device / 4e10), 1e-6);
  }
  // Muon's matrices are updated on the host alone.
  const Json muon = with(given, {{"optimizer", {{"type", "Muon"}}},
                                 {"zero_optimization", {{"reduce_scatter", false}}}});
  question.gpu_memory = static_cast<int64_t>(0.85 * total(muon) * 1.05);
  const Json plan = plan_training(wide(), dump_json(muon), options, question);
  EXPECT_EQ(plan["fit"]["config"]["zero_optimization"]["offload_optimizer"]["device"], "cpu");
  EXPECT_EQ(share_of(plan["fit"]["config"]), 1);
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
