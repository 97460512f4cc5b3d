// The training engine: resume, accumulation, precision, faults, order of calls.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "engine_world.h"

namespace ds {
namespace {

using ::testing::HasSubstr;
using namespace engine_test;  // NOLINT: what these tests are about

// CPUs that the threads of this process may run on, one set per thread.
std::vector<std::set<int>> cpus_of_threads() {
  std::vector<std::set<int>> out;
  for (const fs::directory_entry& task : fs::directory_iterator("/proc/self/task")) {
    cpu_set_t allowed;
    if (sched_getaffinity(std::stoi(task.path().filename()), sizeof(allowed), &allowed) != 0) {
      continue;  // it has ended
    }
    std::set<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) cpus.insert(cpu);
    }
    out.push_back(cpus);
  }
  return out;
}

TEST(Engine, ThreadAffinityIsThatOfItsWorkers) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  const auto bound = [&] {
    const std::vector<std::set<int>> all = cpus_of_threads();
    return std::count(all.begin(), all.end(), std::set<int>{cpu});
  };
  const Json two = with(base_config(), {{"threads", 2}});
  const double loss = make_engine(two)->train_batch().loss;
  const auto before = bound();
  const auto engine = make_engine(with(two, {{"thread_affinity", {cpu}}}));
  EXPECT_EQ(engine->train_batch().loss, loss);
  // One worker beside the caller, who stays where it was, and who may have done the step before the
  // worker ran at all. On a machine of one CPU all threads have it.
  if (CPU_COUNT(&allowed) > 1) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (bound() != before + 1 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(bound(), before + 1);
  }
  EXPECT_THAT(error_of(Code::kInvalidArgument,
                       [&] {
                         make_engine(with(two, {{"thread_affinity", {1023}}}));
                       }),
              HasSubstr("CPU 1023"));
}

TEST(Engine, LearnsAndReports) {
  const auto engine = make_engine(with(base_config(), {{"scheduler", nullptr}}), model_config(0));
  double first = 0, last = 0;
  for (int i = 1; i <= 40; ++i) {
    const StepReport report = engine->train_batch();
    EXPECT_TRUE(report.applied);
    EXPECT_EQ(report.progress.steps, i);
    EXPECT_EQ(report.progress.micro_steps, 2 * i);
    EXPECT_EQ(report.progress.samples, 8 * i);
    EXPECT_EQ(report.tokens, 8 * 16);
    EXPECT_GT(report.grad_norm, 0);
    EXPECT_EQ(report.loss_scale, 1);
    if (i == 1) first = report.loss;
    last = report.loss;
  }
  EXPECT_NEAR(first, std::log(61.0), 0.2);
  EXPECT_LT(last, first - 0.5);
  EXPECT_EQ(engine->optimizer_steps(), 40);
}

class EngineResume : public ::testing::TestWithParam<Json> {};

TEST_P(EngineResume, TenAndTenStepsAreTwentyToTheBit) {
  const Folder folder;
  const Json config = with(base_config(), GetParam());
  const auto straight = make_engine(config);
  std::vector<double> losses;
  for (int i = 0; i < 20; ++i) losses.push_back(straight->train_batch().loss);

  {
    const auto first = make_engine(config);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(first->train_batch().loss, losses[i]);
    first->caller_state().client_state = {{"note", "half way"}};
    first->save(folder.path(), "");
  }
  EXPECT_TRUE(fs::exists(folder.path("global_step10")));
  const auto second = make_engine(config);
  second->train_batch();  // whatever it did before must not matter
  second->load(folder.path(), "");
  EXPECT_EQ(second->caller_state().client_state, Json({{"note", "half way"}}));
  EXPECT_EQ(second->progress().steps, 10);
  for (int i = 10; i < 20; ++i) EXPECT_EQ(second->train_batch().loss, losses[i]) << i;
  EXPECT_TRUE(same_bits(weights(*straight), weights(*second)));
  EXPECT_TRUE(same_bits(flat(straight->values().optimizer_state("wte.weight", "exp_avg_sq")),
                        flat(second->values().optimizer_state("wte.weight", "exp_avg_sq"))));
}
INSTANTIATE_TEST_SUITE_P(
    Configs, EngineResume,
    ::testing::Values(Json::object(), Json{{"bf16", {{"enabled", true}}}},
                      Json{{"threads", 2}, {"activation_checkpointing", {{"enabled", true}}}}));

TEST(Engine, ResumesInTheMiddleOfAccumulation) {
  const Folder folder;
  const Json config = with(base_config(), {{"gradient_accumulation_steps", 3}});
  const std::vector<int64_t> ids{1, 2, 3, 4, 5, 6, 7, 8}, labels{2, 3, 4, 5, 6, 7, 8, -100};
  const auto micro = [&](Engine& engine) {
    const Tensor loss = engine.forward({ids_tensor(ids, 2), ids_tensor(labels, 2), {}, {}, {}});
    engine.backward(loss);
    return engine.step();
  };
  const auto straight = make_engine(config);
  const auto saved = make_engine(config);
  for (int i = 0; i < 6; ++i) micro(*straight);
  for (int i = 0; i < 4; ++i) micro(*saved);
  saved->save(folder.path(), "middle");
  const auto loaded = make_engine(config);
  loaded->load(folder.path(), "middle");
  EXPECT_EQ(micro(*loaded).skip_reason, SkipReason::kAccumulating);
  EXPECT_TRUE(micro(*loaded).applied);
  EXPECT_TRUE(same_bits(weights(*straight), weights(*loaded)));

  const auto other = make_engine(with(config, {{"gradient_accumulation_steps", 1}}));
  EXPECT_THAT(error_of(Code::kConfig, [&] { other->load(folder.path(), "middle"); }),
              HasSubstr("gradient_accumulation_steps 1"));
}

TEST(Engine, ThreadsAndCheckpointingGiveTheSameBits) {
  std::vector<float> expected;
  for (const Json& change :
       {Json{{"threads", 1}}, Json{{"threads", 2}}, Json{{"threads", 3}},
        Json{{"activation_checkpointing", {{"enabled", true}}}},
        Json{{"threads", 2},
             {"activation_checkpointing", {{"enabled", true}, {"number_checkpoints", 1}}}},
        Json{{"activation_checkpointing", {{"enabled", true}, {"checkpoint_every_nth", 1}}}},
        Json{{"activation_checkpointing", {{"enabled", true}, {"checkpoint_every_nth", 2}}}},
        Json{{"activation_checkpointing",
              {{"enabled", true},
               {"number_checkpoints", 2},
               {"partition_activations", true},
               {"contiguous_memory_optimization", true},
               {"cpu_checkpointing", true}}}}}) {
    const auto engine = make_engine(with(base_config(), change));
    for (int i = 0; i < 5; ++i) engine->train_batch();
    if (expected.empty()) expected = weights(*engine);
    EXPECT_TRUE(same_bits(weights(*engine), expected)) << dump_json(change);
  }
}

TEST(Engine, RecomputingSingleBlocksNeedsThoseBlocks) {
  const Json wanted = {
      {"activation_checkpointing", {{"enabled", true}, {"checkpoint_every_nth", 3}}}};
  EXPECT_THAT(error_of(Code::kConfig, [&] { make_engine(with(base_config(), wanted)); }),
              HasSubstr("checkpoint_every_nth is 3, but the model has 2"));
}

// Half of the blocks keep what they need: between recomputing all and none.
TEST(Engine, RecomputingSingleBlocksKeepsTheOthers) {
  const auto peak = [](const Json& checkpointing) {
    const auto engine =
        make_engine(with(base_config(), {{"activation_checkpointing", checkpointing}}),
                    with(model_config(0), {{"n_layer", 8}}));
    engine->train_batch();
    return engine->model()->device()->account().peak(MemoryTag::kActivations);
  };
  const int64_t none = peak({{"enabled", false}}), all = peak({{"enabled", true}});
  const int64_t half = peak({{"enabled", true}, {"checkpoint_every_nth", 2}});
  EXPECT_LT(static_cast<double>(half), 0.8 * static_cast<double>(none));
  EXPECT_GT(static_cast<double>(half), 1.2 * static_cast<double>(all));
}

// A toy whose parameters can be counted by hand: 100 words and 4 positions of 12 numbers, two
// blocks of 1884, a norm of 24. It learns to go on with a row of numbers.
TEST(Engine, TheToyOf5040ParametersLearns) {
  const Json toy = {{"model_type", "gpt2"}, {"vocab_size", 100}, {"n_positions", 4},
                    {"n_embd", 12},         {"n_layer", 2},      {"n_head", 4},
                    {"resid_pdrop", 0},     {"embd_pdrop", 0},   {"attn_pdrop", 0}};
  const auto engine = std::make_unique<Engine>(
      dump_json(with(base_config(), {{"gradient_accumulation_steps", 1}, {"scheduler", nullptr}})),
      models::Model::create(toy, 3), nullptr);
  EXPECT_EQ(engine->model()->parameters().elements(), 1200 + 48 + 2 * 1884 + 24);
  EXPECT_EQ(engine->model()->parameters().elements(), 5040);
  std::vector<double> losses;
  for (int64_t step = 0; step < 150; ++step) {
    std::vector<int64_t> ids, next;
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t at = step * 7 + i / 4 * 13 + i % 4 * 3;
      ids.push_back(at % 20 * 5);
      next.push_back((at + 3) % 20 * 5);
    }
    const Tensor loss = engine->forward({ids_tensor(ids, 4), ids_tensor(next, 4), {}, {}, {}});
    engine->backward(loss);
    losses.push_back(engine->step().loss);
  }
  EXPECT_NEAR(losses.front(), std::log(100.0), 0.2);
  EXPECT_LT(losses.back(), 0.5 * losses.front());
}

TEST(Engine, AccumulationOrderChangesRoundingOnly) {
  // 4 x 1 and 1 x 4 samples sum the same products in another order. Adam divides by the gradient's
  // own size, so a relative rounding of 1e-6 in a gradient moves a weight by about 1e-6 of its step
  // (lr 1e-2); near-zero gradients move more, up to 1e-3 of a step over five steps.
  const auto run = [](int64_t micro, int64_t accumulation) {
    const auto engine =
        make_engine(with(base_config(), {{"train_micro_batch_size_per_gpu", micro},
                                         {"gradient_accumulation_steps", accumulation}}),
                    model_config(0));
    std::vector<double> losses;
    for (int i = 0; i < 5; ++i) losses.push_back(engine->train_batch().loss);
    return std::pair(weights(*engine), losses);
  };
  const auto [one, one_losses] = run(1, 4);
  const auto [four, four_losses] = run(4, 1);
  for (size_t i = 0; i < one_losses.size(); ++i) {
    EXPECT_NEAR(one_losses[i], four_losses[i], 1e-5 * one_losses[i]);
  }
  EXPECT_LT(largest_difference(one, four), 5 * 1e-2 * 1e-2);
}

TEST(Engine, Bf16FollowsFp32) {
  const auto fp32 = make_engine(base_config(), model_config(0));
  const auto bf16 =
      make_engine(with(base_config(), {{"bf16", {{"enabled", true}}}}), model_config(0));
  for (int i = 0; i < 20; ++i) {
    const double expected = fp32->train_batch().loss;
    EXPECT_NEAR(bf16->train_batch().loss, expected, 1e-2 * expected) << i;
  }
}

TEST(Engine, SkipsAStepWithANonFiniteGradientAndNamesTheTensor) {
  for (const bool bf16 : {false, true}) {
    const auto engine =
        make_engine(with(base_config(), {{"bf16", {{"enabled", bf16}}}}), model_config(0));
    engine->train_batch();
    Tensor bias = engine->model()->get("h.1.mlp.c_fc.bias");
    const Tensor good = engine->model()->get("h.1.mlp.c_fc.bias");
    bias.data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
    engine->model()->set("h.1.mlp.c_fc.bias", bias);
    const std::vector<float> before = weights(*engine);
    const auto moments = flat(engine->values().optimizer_state("wte.weight", "exp_avg"));
    const double lr = engine->rates().front();

    const StepReport report = engine->train_batch();
    EXPECT_FALSE(report.applied);
    EXPECT_EQ(report.skip_reason, SkipReason::kNonFinite);
    EXPECT_EQ(report.grad_norm, -1);
    EXPECT_FALSE(report.first_bad_tensor.empty());
    EXPECT_EQ(report.progress.steps, 2);
    EXPECT_EQ(report.progress.skipped, 1);
    EXPECT_EQ(engine->optimizer_steps(), 1);
    EXPECT_EQ(engine->rates().front(), lr);
    EXPECT_TRUE(same_bits(weights(*engine), before));
    EXPECT_TRUE(
        same_bits(flat(engine->values().optimizer_state("wte.weight", "exp_avg")), moments));

    engine->model()->set("h.1.mlp.c_fc.bias", good);
    EXPECT_TRUE(engine->train_batch().applied);  // the bad gradients are gone
  }
}

TEST(Engine, ClippingBoundsTheUpdate) {
  const auto norm_after = [](double limit) {
    const auto engine = make_engine(
        with(base_config(),
             {{"gradient_clipping", limit},
              {"scheduler", nullptr},
              {"optimizer",
               {{"params", {{"betas", {0.0, 0.0}}, {"eps", 1e3}, {"weight_decay", 0}}}}}}),
        model_config(0));
    const std::vector<float> before = weights(*engine);
    engine->train_batch();
    return largest_difference(weights(*engine), before);
  };
  // With eps far above the gradient, the update is proportional to the clipped gradient.
  const double loose = norm_after(0.1), tight = norm_after(0.001);
  EXPECT_GT(loose, 2 * tight);
}

TEST(Engine, WeightDecayLeavesBiasesAndNormsAlone) {
  const auto engine = make_engine(
      with(base_config(),
           {{"scheduler", nullptr},
            {"optimizer", {{"params", {{"lr", 0.1}, {"weight_decay", 1.0}, {"eps", 1e30}}}}}}),
      model_config(0));
  Tensor gamma = engine->model()->get("ln_f.weight");
  const float matrix = engine->model()->get("wpe.weight").data<float>()[0];
  engine->train_batch();  // eps kills the gradient's part of the update
  EXPECT_EQ(flat(engine->model()->get("ln_f.weight")), flat(gamma));
  EXPECT_NEAR(engine->model()->get("wpe.weight").data<float>()[0], 0.9f * matrix, 1e-7);
}

TEST(Engine, OrderOfCallsIsChecked) {
  const auto engine = make_engine(base_config());
  const Tensor ids = ids_tensor({1, 2, 3, 4}, 1), labels = ids_tensor({2, 3, 4, 5}, 1);
  error_of(Code::kState, [&] { engine->step(); });
  error_of(Code::kState, [&] { engine->backward(Tensor()); });
  const Tensor loss = engine->forward({ids, labels, {}, {}, {}});
  error_of(Code::kState, [&] { engine->forward({ids, labels, {}, {}, {}}); });
  error_of(Code::kState, [&] { engine->train_batch(); });
  error_of(Code::kState, [&] { engine->step(); });
  error_of(Code::kState, [&] { engine->save("unused", "x"); });
  error_of(Code::kInvalidArgument, [&] { engine->backward(ids); });
  error_of(Code::kState,
           [&] { engine->model()->set("ln_f.bias", engine->model()->get("ln_f.bias")); });
  engine->backward(loss);
  error_of(Code::kState, [&] { engine->backward(loss); });
  error_of(Code::kState, [&] { engine->forward({ids, labels, {}, {}, {}}); });
  EXPECT_EQ(engine->step().skip_reason, SkipReason::kAccumulating);
  EXPECT_THAT(error_of(Code::kState,
                       [&] { Engine second(dump_json(base_config()), engine->model(), nullptr); }),
              HasSubstr("another engine"));
}

TEST(Engine, BadBatchesAreRefusedAndLeaveTheEngineUsable) {
  const auto engine = make_engine(base_config());
  const Tensor good = ids_tensor({1, 2, 3, 4}, 2);
  const auto refused = [&](const Tensor& ids, const Tensor& labels, const Tensor& mask = {}) {
    return error_of(Code::kInvalidArgument, [&] { engine->forward({ids, labels, mask, {}, {}}); });
  };
  EXPECT_THAT(refused(ids_tensor({1, 2, 3, 61}, 2), good), HasSubstr("token ids[1, 1] is 61"));
  EXPECT_THAT(refused(ids_tensor({1, -1, 3, 6}, 2), good), HasSubstr("-1"));
  EXPECT_THAT(refused(good, ids_tensor({1, 2, 3, 4}, 1)), HasSubstr("shape"));
  EXPECT_THAT(refused(good, ids_tensor({1, 2, 3, -7}, 2)), HasSubstr("labels[1, 1]"));
  EXPECT_THAT(refused(ids_tensor(std::vector<int64_t>(33, 1), 1), good), HasSubstr("33"));
  EXPECT_THAT(refused(good, good, ids_tensor({1, 1}, 1)), HasSubstr("attention mask"));
  EXPECT_TRUE(engine->train_batch().applied);
}

TEST(Engine, NoCountedLabelsGiveNoGradient) {
  const auto engine = make_engine(with(base_config(), {{"gradient_accumulation_steps", 1}}));
  const Tensor loss = engine->forward(
      {ids_tensor({1, 2, 3, 4}, 2), ids_tensor({-100, -100, -100, -100}, 2), {}, {}, {}});
  EXPECT_EQ(*loss.data<float>(), 0);
  engine->backward(loss);
  const StepReport report = engine->step();
  EXPECT_EQ(report.grad_norm, 0);
}

TEST(Engine, WarmStepsAskTheSystemForNoMemory) {
  const auto engine = make_engine(base_config());
  for (int i = 0; i < 2; ++i) engine->train_batch();
  const int64_t before = engine->model()->device()->system_allocations();
  for (int i = 0; i < 5; ++i) engine->train_batch();
  EXPECT_EQ(engine->model()->device()->system_allocations(), before);
  const Json report = engine->memory_report();
  for (const char* tag : {"parameters", "gradients", "optimizer", "activations"}) {
    EXPECT_GT(report["tags"][tag]["peak"].get<int64_t>(), 0) << tag;
  }
  EXPECT_EQ(report["tags"]["activations"]["now"].get<int64_t>(), 0);
}

TEST(Engine, DamagedAndForeignCheckpointsLeaveTheEngineAsItWas) {
  const Folder folder;
  const auto engine = make_engine(base_config());
  engine->train_batch();
  engine->save(folder.path(), "a");
  engine->train_batch();
  const std::vector<float> before = weights(*engine);
  error_of(Code::kNotFound, [&] { engine->load(folder.path(), "b"); });
  Json other = model_config();
  other["n_embd"] = 36;
  const auto foreign = make_engine(base_config(), other);
  EXPECT_THAT(error_of(Code::kInvalidArgument, [&] { foreign->load(folder.path(), "a"); }),
              HasSubstr("shape"));
  for (const auto& entry : fs::directory_iterator(folder.path("a"))) {
    if (!entry.path().filename().string().starts_with("data")) continue;
    File file(entry.path(), File::Mode::kRead);
    std::vector<std::byte> bytes(static_cast<size_t>(file.size()));
    file.read_at(0, bytes);
    bytes[bytes.size() / 2] ^= std::byte{1};
    File(entry.path(), File::Mode::kCreate).write_at(0, bytes);
  }
  EXPECT_THAT(error_of(Code::kCorrupt, [&] { engine->load(folder.path(), "a"); }),
              HasSubstr("data"));
  EXPECT_EQ(engine->progress().steps, 2);
  EXPECT_TRUE(same_bits(weights(*engine), before));
}

TEST(Engine, TwoEnginesOnTwoThreadsDoNotDisturbEachOther) {
  const auto run = [](std::vector<float>& out) {
    const auto engine = make_engine(with(base_config(), {{"threads", 2}}));
    for (int i = 0; i < 5; ++i) engine->train_batch();
    out = weights(*engine);
  };
  std::vector<float> alone, a, b;
  run(alone);
  std::thread first([&] { run(a); }), second([&] { run(b); });
  first.join();
  second.join();
  EXPECT_TRUE(same_bits(a, alone));
  EXPECT_TRUE(same_bits(b, alone));
}

TEST(Engine, EvaluationChangesNothing) {
  const auto engine = make_engine(base_config());
  engine->train_batch();
  const std::vector<float> before = weights(*engine);
  const auto data = periodic_data();
  const double first = engine->evaluate(*data, 3);
  EXPECT_EQ(engine->evaluate(*data, 3), first);
  EXPECT_GT(first, 1);
  EXPECT_TRUE(same_bits(weights(*engine), before));
  EXPECT_EQ(engine->progress().samples, 8);
}

TEST(Engine, AShortLastBatchIsEvaluatedUnlessDropped) {
  const auto data = periodic_data();
  ASSERT_NE(data->sample_count() % 5, 0);
  const auto loss = [&](bool drop) {
    const auto engine = make_engine(with(
        base_config(), {{"train_micro_batch_size_per_gpu", 5}, {"dataloader_drop_last", drop}}));
    return engine->evaluate(*data, 0);
  };
  EXPECT_NE(loss(true), loss(false));
  EXPECT_NEAR(loss(true), loss(false), 0.01);
}

TEST(Engine, DataBeginAgainInAnotherOrder) {
  const auto engine = make_engine(base_config());
  const int64_t steps = engine->config().batch.train_batch;
  const int64_t count = periodic_data()->sample_count();
  for (int64_t i = 0; i * steps < count + steps; ++i) EXPECT_TRUE(engine->train_batch().applied);
}

TEST(Engine, MonitorsReceiveEveryStep) {
  const Folder folder;
  const Json monitor = {{"enabled", true}, {"output_path", folder.path()}, {"job_name", "job"}};
  const auto engine = make_engine(
      with(base_config(),
           {{"csv_monitor", monitor}, {"jsonl_monitor", monitor}, {"tensorboard", monitor}}));
  for (int i = 0; i < 3; ++i) engine->train_batch();
  const std::string csv = read_text_file(folder.path("job/Train_Samples_lr.csv"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 4);
  const std::string jsonl = read_text_file(folder.path("job/metrics.jsonl"));
  EXPECT_EQ(std::count(jsonl.begin(), jsonl.end(), '\n'), 3);
  EXPECT_THAT(jsonl, HasSubstr("\"Train/Samples/train_loss\""));
}

TEST(Engine, TheConfigurationCanBeReadBackWithOrigins) {
  const auto engine = make_engine(base_config());
  const Json document = engine->config_document();
  EXPECT_EQ(document["config"]["train_batch_size"], 8);
  EXPECT_EQ(document["origins"]["/train_batch_size"], "derived");
  EXPECT_EQ(document["origins"]["/gradient_clipping"], "default");
}

}  // namespace
}  // namespace ds
