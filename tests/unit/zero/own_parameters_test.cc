// Parameters and gradients of the caller at every stage: fetched, released, reduced in buckets.
#include <gmock/gmock.h>

#include "base/log.h"
#include "own_world.h"

namespace ds::zero_test {
namespace {

using ::testing::HasSubstr;

struct Variant {
  int world;
  int accumulation;
};

class OwnParameters : public ::testing::TestWithParam<Variant> {};

TEST_P(OwnParameters, EveryStageHasTheBitsOfStageZero) {
  const auto [world, accumulation] = GetParam();
  const Json more = {{"gradient_accumulation_steps", accumulation}, {"gradient_clipping", 0.5}};
  const Trained plain = train_own({world, own_config(0, Json::object(), more)});
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool overlap : {false, true}) {
      for (const int64_t bucket : {900, 1'000'000}) {
        SCOPED_TRACE(str_cat("stage ", stage, ", overlap ", overlap, ", bucket ", bucket));
        const Json zero = {{"overlap_comm", overlap},
                           {"reduce_bucket_size", bucket},
                           {"stage3_param_persistence_threshold", overlap ? 30 : 0},
                           {"stage3_max_live_parameters", overlap ? 2500 : 1'000'000},
                           {"stage3_max_reuse_distance", bucket},
                           {"stage3_prefetch_bucket_size", 1500}};
        const Trained other = train_own({world, own_config(stage, zero, more)});
        EXPECT_TRUE(same_bits(other.weights, plain.weights));
        EXPECT_EQ(other.norms, plain.norms);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, OwnParameters,
                         ::testing::Values(Variant{1, 1}, Variant{2, 1}, Variant{3, 4},
                                           Variant{4, 1}),
                         [](const auto& variant) {
                           return str_cat("World", variant.param.world, "Accumulation",
                                          variant.param.accumulation);
                         });

// Plain gradient descent in double precision, over the mean of what all ranks had.
TEST(OwnParameters, AgreeWithDescentByHand) {
  constexpr int kWorld = 3, kSteps = 5;
  constexpr double kRate = 0.05;
  const Json more = {{"optimizer", {{"type", "SGD"}, {"params", {{"lr", kRate}}}}},
                     {"zero_allow_untested_optimizer", true},
                     {"gradient_clipping", 0}};
  for (const int stage : {2, 3}) {
    const OwnJob job{kWorld, own_config(stage, {{"reduce_bucket_size", 1500}}, more), kSteps};
    const Trained trained = train_own(job);
    size_t at = 0;
    const nn::ParameterSet set = own_parameters(job);
    for (nn::ParamId id = 0; id < set.size(); ++id) {
      for (int64_t i = 0; i < set[id].shape.elements(); ++i, ++at) {
        double w = noise(id, i);
        for (int step = 0; step < kSteps; ++step) {
          double mean = 0;
          for (int rank = 0; rank < kWorld; ++rank) {
            mean += (0.25 * w + noise(id, i, rank, step)) / kWorld;
          }
          w -= kRate * mean;
        }
        ASSERT_NEAR(trained.weights[at], w, 1e-5) << set[id].name << " " << i;
      }
    }
  }
}

TEST(OwnParameters, BfloatStagesAgree) {
  const Json more = {{"bf16", {{"enabled", true}}}};
  OwnJob job{2, own_config(0, {{"reduce_bucket_size", 900}}, more)};
  job.dtype = DType::kBFloat16;
  const Trained plain = train_own(job);
  for (const int stage : {2, 3}) {
    job.config["zero_optimization"]["stage"] = stage;
    const Trained other = train_own(job);
    // What travels at stage 3 is bf16 by default, elsewhere the fp32 that gradients gather in.
    EXPECT_LT(largest_difference(other.weights, plain.weights), stage == 3 ? 2e-2 : 1e-30);
  }
}

// What is known of the order is used, and given up where it does not hold.
TEST(OwnParameters, AnOrderThatChangesIsRecordedAgain) {
  const Json zero = {{"reduce_bucket_size", 900},
                     {"stage3_param_persistence_threshold", 0},
                     {"stage3_prefetch_bucket_size", 2000},
                     {"stage3_max_reuse_distance", 0}};
  OwnJob job{2, own_config(3, zero), 6};
  job.turned = true;
  const Trained turned = train_own(job);
  job.config["zero_optimization"]["stage"] = 0;
  EXPECT_TRUE(same_bits(turned.weights, train_own(job).weights));
}

// Where it is asked for, every rank tells of the pass whose order was another, and of no other
// pass.
TEST(OwnParameters, AnOrderThatChangesIsToldWhenAskedFor) {
  struct Told {
    std::mutex mutex;
    std::vector<std::string> texts;
  };
  for (const bool asked : {false, true}) {
    for (const bool turned : {false, true}) {
      SCOPED_TRACE(str_cat("asked ", asked, ", turned ", turned));
      OwnJob job{2, own_config(3, {{"reduce_bucket_size", 900},
                                   {"stage3_param_persistence_threshold", 0},
                                   {"log_trace_cache_warnings", asked}})};
      job.turned = turned;
      job.steps = 5;
      Told told;
      log_set_sink(
          [](void* self, int32_t, const char*, const char* text) {
            auto& to = *static_cast<Told*>(self);
            const std::lock_guard lock(to.mutex);
            to.texts.emplace_back(text);
          },
          &told, nullptr);
      train_own(job);
      log_set_sink(nullptr, nullptr, nullptr);
      ASSERT_EQ(told.texts.size(), asked && turned ? 2u : 0u);
      for (const std::string& text : told.texts) EXPECT_THAT(text, HasSubstr("another order"));
    }
  }
}

// Of the parameters that a rank does not use, it holds its share alone.
TEST(OwnParameters, MemoryFallsAsTheStageSays) {
  constexpr int kWorld = 4;
  const Json zero = {{"reduce_bucket_size", 20000},
                     {"stage3_param_persistence_threshold", 0},
                     {"stage3_max_live_parameters", 25000}};
  OwnJob job{kWorld, own_config(3, zero), 1, 20};
  job.width = 700;
  run_ranks(kWorld, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(job.config), own_model(job), comm);
    const auto p = static_cast<double>(engine.model()->parameters().elements());
    MemoryAccount& account = engine.model()->device()->account();
    account.reset_peaks();  // the whole values of the caller went through a buffer
    const auto now = [&](MemoryTag tag) { return static_cast<double>(account.now(tag)) / p; };
    for (int step = 0; step < 2; ++step) {
      run_own_batch(engine, job, comm->rank(), step);
      engine.step();
    }
    const double share = 1.0 / kWorld;
    EXPECT_NEAR(now(MemoryTag::kParameters), 4 * share, 0.05 * 4 * share + 0.05);
    EXPECT_NEAR(now(MemoryTag::kGradients), 4 * share, 0.05 * 4 * share + 0.05);
    EXPECT_NEAR(now(MemoryTag::kOptimizer), 8 * share, 0.05 * 8 * share + 0.05);
    // Gathered weights and buckets of gradients are a few layers, not the model.
    EXPECT_LT(static_cast<double>(account.peak(MemoryTag::kCommunication)) / p, 2.0);
    const int64_t before = account.now(MemoryTag::kCommunication);
    const int64_t ids[] = {0, 1};
    {
      const std::vector<Tensor> held = engine.scopes().fetch(ids);
      EXPECT_GT(account.now(MemoryTag::kCommunication), before);
      engine.scopes().release(ids);
    }
  });
}

TEST(OwnParameters, WrongUseIsRefused) {
  for (const int stage : {0, 3}) {
    const OwnJob job{2, own_config(stage)};
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(job.config), own_model(job), comm);
      const int64_t first[] = {0}, both[] = {0, 1}, unknown[] = {10};
      const auto refused = [&](Code code, const char* text, const auto& call) {
        EXPECT_THAT(error_of(code, call), HasSubstr(text));
      };
      refused(Code::kState, "layer0.weight is released, but not fetched",
              [&] { engine.scopes().release(first); });
      refused(Code::kInvalidArgument, "names parameter 10",
              [&] { engine.scopes().fetch(unknown); });
      engine.scopes().fetch(first);
      refused(Code::kState, "layer0.bias is released, but not fetched",
              [&] { engine.scopes().release(both); });
      refused(Code::kState, "fetched, such as layer0.weight", [&] { engine.step(); });
      refused(Code::kState, "fetched, such as layer0.weight", [&] { engine.join(); });
      refused(Code::kState, "release them first", [&] { engine.scopes().gather(both); });
      engine.scopes().fetch(both);  // a second time
      engine.scopes().release(both);
      refused(Code::kState, "fetched", [&] { engine.step(); });
      engine.scopes().release(first);
      engine.step();
      engine.scopes().fetch(both);  // the engine ends with something fetched
    });
  }
  Engine built_in(dump_json(zero_config(0)), models::Model::create(model_config(), 1), nullptr);
  const int64_t first[] = {0};
  EXPECT_THAT(error_of(Code::kUnsupported, [&] { built_in.scopes().fetch(first); }),
              HasSubstr("DS_SCOPE_MODIFY"));
}

// Ranks that fetch different parameters, of equal size, are told which.
TEST(OwnParameters, RanksThatDisagreeAreNamed) {
  OwnJob job{3, own_config(3, {{"reduce_bucket_size", 1}})};
  const auto group = make_local_group(3, {});
  std::vector<std::string> texts(3);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Engine engine(dump_json(job.config), own_model(job), group[rank]);
      const int64_t ids[] = {rank == 1 ? 3 : 1};  // biases of 23 elements
      texts[rank] = error_of(Code::kComm, [&] { engine.scopes().fetch(ids); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) {
    EXPECT_THAT(text, HasSubstr("rank 1 called"));
    EXPECT_THAT(text, HasSubstr("layer1.bias"));
    EXPECT_THAT(text, HasSubstr("layer0.bias"));
  }
}

TEST(OwnParameters, GradientsInAnotherOrderAreNamed) {
  OwnJob job{2, own_config(3, {{"reduce_bucket_size", 1}})};
  const auto group = make_local_group(2, {});
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Engine engine(dump_json(job.config), own_model(job), group[rank]);
      const Tensor g = Tensor::zeros(make_cpu_device(), DType::kFloat32, {23}, MemoryTag::kOther);
      const Tensor* const pair[] = {&g, &g};
      const int64_t ids[] = {rank == 0 ? 1 : 3, rank == 0 ? 3 : 1};
      texts[rank] = error_of(Code::kComm, [&] {
        engine.gradients().add(ids, pair);
        engine.step();
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(texts[0], HasSubstr("layer1.bias"));
}

TEST(OwnParameters, LentMemoryIsRefusedAtStageThree) {
  OwnJob job{2, own_config(3)};
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto model = own_model(job);
    model->weights().borrowed().add(
        1, Tensor::zeros(make_cpu_device(), DType::kFloat32, {23}, MemoryTag::kOther));
    const std::string text =
        error_of(Code::kUnsupported, [&] { Engine(dump_json(job.config), model, comm); });
    EXPECT_THAT(text, HasSubstr("layer0.bias is lent"));
    EXPECT_THAT(text, HasSubstr("ds_engine_open_scope"));
  });
}

// Gradients may come in several parts, be read, replaced and given up, at every stage.
TEST(OwnParameters, GradientsAreReachable) {
  for (const int stage : {0, 2, 3}) {
    for (const int accumulation : {1, 2}) {
      SCOPED_TRACE(str_cat("stage ", stage, ", accumulation ", accumulation));
      const OwnJob job{2, own_config(stage, {{"reduce_bucket_size", 500}},
                                     {{"gradient_accumulation_steps", accumulation}})};
      run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(job.config), own_model(job), comm);
        const std::vector<float> before = all_weights(engine);
        Tensor g = Tensor::zeros(make_cpu_device(), DType::kFloat32, {23}, MemoryTag::kOther);
        for (int64_t i = 0; i < 23; ++i) g.data<float>()[i] = static_cast<float>(i);
        const Tensor* const one = &g;
        const int64_t bias[] = {1};
        engine.gradients().add(bias, {&one, 1});
        engine.gradients().add(bias, {&one, 1});  // another contribution of the same micro batch
        const std::vector<float> sum = flat(engine.gradients().get("layer0.bias"));
        for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], 2.0f * static_cast<float>(i));
        engine.gradients().add(bias, {&one, 1});
        EXPECT_EQ(flat(engine.gradients().get("layer0.bias"))[5], 15.0f);
        engine.gradients().set("layer0.bias", g);
        EXPECT_EQ(flat(engine.gradients().get("layer0.bias"))[5], 5.0f);
        engine.discard_gradients();
        EXPECT_EQ(flat(engine.gradients().get("layer0.bias"))[5], 0.0f);
        EXPECT_TRUE(same_bits(all_weights(engine), before));
        engine.gradients().set("layer0.bias", g);
        StepReport report = engine.step();
        if (accumulation == 2) report = engine.step();
        double norm = 0;
        for (int i = 0; i < 23; ++i) norm += i * i;
        EXPECT_NEAR(report.grad_norm, std::sqrt(norm), 1e-6 * std::sqrt(norm));
      });
    }
  }
}

// Between micro batches a step can be saved, at every stage, and goes on elsewhere.
TEST(OwnParameters, CheckpointsHoldTheOpenStep) {
  const Json more = {{"gradient_accumulation_steps", 2}};
  std::vector<float> unbroken;
  for (const int stage : {0, 1, 3}) {
    const Folder folder;
    const OwnJob job{2, own_config(stage, {{"reduce_bucket_size", 900}}, more)};
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(job.config), own_model(job), comm);
      run_own_batch(engine, job, comm->rank(), 0);
      engine.step();
      engine.save(folder.path(), "half");
      run_own_batch(engine, job, comm->rank(), 1);
      engine.step();
      const std::vector<float> weights = all_weights(engine);
      if (comm->rank() == 0) unbroken = weights;
    });
    OwnJob next = job;
    next.config["zero_optimization"]["stage"] = 3 - stage;
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(next.config), own_model(job), comm);
      engine.load(folder.path(), "half");
      run_own_batch(engine, next, comm->rank(), 1);
      EXPECT_TRUE(engine.step().applied);
      const std::vector<float> weights = all_weights(engine);
      EXPECT_TRUE(comm->rank() != 0 || same_bits(weights, unbroken)) << "from stage " << stage;
    });
  }
}

}  // namespace
}  // namespace ds::zero_test
