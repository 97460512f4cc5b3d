// Passes whose gradients stay on their rank until a step, as in DeepSpeed's no_sync.
#include <gmock/gmock.h>

#include "zero_world.h"

namespace ds::zero_test {
namespace {

using ::testing::HasSubstr;

constexpr int kWorld = 2;

Json no_sync_config(int stage, int64_t accumulation, const Json& more = Json::object()) {
  Json config = zero_config(stage, {{"reduce_bucket_size", 3000}},
                            {{"gradient_accumulation_steps", accumulation},
                             {"gradient_clipping", 0},
                             {"scheduler", nullptr}});
  config["optimizer"] = {{"type", "SGD"}, {"params", {{"lr", 0.1}}}};
  config["zero_allow_untested_optimizer"] = true;
  config.merge_patch(more);
  return config;
}

std::unique_ptr<Engine> engine_of(const Json& config, std::shared_ptr<Communicator> comm) {
  return std::make_unique<Engine>(dump_json(config), models::Model::create(model_config(0), 3),
                                  std::move(comm));
}

int64_t calls_so_far(const Communicator& comm) {
  int64_t calls = 0;
  for (const Traffic& traffic : comm.total_traffic()) calls += traffic.calls;
  return calls;
}

// One forward and backward of what rank `rank` has as micro batch `index`; its loss.
float pass(Engine& engine, int rank, int64_t index) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 16; ++i) ids.push_back((i * i + 7 * index + 11 * rank) % 61);
  MicroBatch batch;
  batch.ids = batch.labels = ids_tensor(ids, 2);
  const Tensor loss = engine.forward(batch);
  engine.backward(loss);
  return *loss.data<float>();
}

// The step that one engine makes of the mean of what ranks sum up, each alone.
struct Reference {
  Trained trained;
  explicit Reference(const Json& config, int64_t micro_batches) {
    Json alone = config;
    alone["zero_optimization"]["stage"] = 0;
    std::vector<std::unique_ptr<Engine>> ranks;
    double loss = 0;
    for (int rank = 0; rank < kWorld; ++rank) {
      ranks.push_back(engine_of(alone, nullptr));
      ranks.back()->set_boundary(false);
      for (int64_t i = 0; i < micro_batches; ++i) {
        loss += pass(*ranks.back(), rank, i) / static_cast<double>(kWorld * micro_batches);
        ranks.back()->step();
      }
    }
    Engine& first = *ranks.front();
    for (nn::ParamId id = 0; id < first.model()->parameters().size(); ++id) {
      const nn::Parameter& p = first.model()->parameters()[id];
      const Tensor a = first.gradients().get(p.name), b = ranks.back()->gradients().get(p.name);
      for (int64_t i = 0; i < a.elements(); ++i) {
        a.data<float>()[i] = (a.data<float>()[i] + b.data<float>()[i]) / kWorld;
      }
      first.gradients().set(p.name, a);
    }
    first.set_boundary(true);
    trained.norms.push_back(first.step().grad_norm);
    trained.losses.push_back(loss);
    trained.weights = all_weights(first);
  }
};

struct Variant {
  const char* name;
  Json more;
  double bound;  // of weights' differences; 0: the same bits
};

const Variant kVariants[] = {
    {"fp32", Json::object(), 0},
    {"bf16", {{"bf16", {{"enabled", true}}}}, 0},
    {"fp16", {{"fp16", {{"enabled", true}, {"loss_scale", 64}}}}, 0},
    // Sums of micro batches are rounded to 8 bits, and so is the mean of the ranks.
    {"bf16 sums",
     {{"bf16", {{"enabled", true}}}, {"data_types", {{"grad_accum_dtype", "bf16"}}}},
     1e-3},
};

// Ranks sum up each for itself, and the mean of the sums makes the step; nothing is sent before.
TEST(NoSync, OneReductionMakesTheStepOfTheSums) {
  for (const Variant& variant : kVariants) {
    const Reference expected(no_sync_config(0, 1, variant.more), 4);
    for (const int stage : {0, 1}) {
      for (const int64_t inside : {3, 4}) {
        SCOPED_TRACE(str_cat(variant.name, ", stage ", stage, ", ", inside, " passes inside"));
        run_ranks(kWorld, [&, s = stage](const std::shared_ptr<Communicator>& comm) {
          const auto engine = engine_of(no_sync_config(s, 1, variant.more), comm);
          engine->gradients().begin_no_sync();
          const int64_t before = calls_so_far(*comm);
          for (int64_t i = 0; i < inside; ++i) pass(*engine, comm->rank(), i);
          EXPECT_EQ(calls_so_far(*comm), before);
          engine->gradients().end_no_sync();
          for (int64_t i = inside; i < 4; ++i) pass(*engine, comm->rank(), i);
          const StepReport report = engine->step();
          EXPECT_TRUE(report.applied);
          EXPECT_EQ(report.progress.micro_steps, 4);
          EXPECT_NEAR(report.loss, expected.trained.losses[0], 1e-6);
          const std::vector<float> weights = all_weights(*engine);
          if (variant.bound > 0) {
            EXPECT_LT(largest_difference(weights, expected.trained.weights), variant.bound);
            return;
          }
          EXPECT_TRUE(same_bits(weights, expected.trained.weights));
          EXPECT_EQ(report.grad_norm, expected.trained.norms[0]);
        });
      }
    }
  }
}

// Passes inside count as micro batches of gradient_accumulation_steps, and what was reduced before
// the scope stays.
TEST(NoSync, PassesCountTowardsTheBoundary) {
  std::vector<float> synced;
  for (const bool scope : {false, true}) {
    run_ranks(kWorld, [&](const std::shared_ptr<Communicator>& comm) {
      const auto engine = engine_of(no_sync_config(1, 4), comm);
      pass(*engine, comm->rank(), 0);
      EXPECT_FALSE(engine->step().applied);
      if (scope) engine->gradients().begin_no_sync();
      for (int64_t i = 1; i < 3; ++i) {
        pass(*engine, comm->rank(), i);
        if (!scope) engine->step();
      }
      if (scope) engine->gradients().end_no_sync();
      pass(*engine, comm->rank(), 3);
      EXPECT_TRUE(engine->step().applied);
      // The next step reduces as ever.
      for (int64_t i = 4; i < 8; ++i) {
        pass(*engine, comm->rank(), i);
        EXPECT_EQ(engine->step().applied, i == 7);
      }
      const std::vector<float> weights = all_weights(*engine);
      if (comm->rank() != 0) return;
      if (!scope) synced = weights;
      // Another order of the same sums: a few roundings of gradients of about 0.1, times 0.1.
      EXPECT_LT(largest_difference(weights, synced), 1e-7);
    });
  }
}

TEST(NoSync, ScopesAfterOneAnotherRepeatLossesAndNorms) {
  run_ranks(kWorld, [](const std::shared_ptr<Communicator>& comm) {
    const auto engine = engine_of(no_sync_config(1, 1), comm);
    std::vector<float> losses[2];
    std::vector<double> norms[2];
    for (int round = 0; round < 2; ++round) {
      engine->gradients().begin_no_sync();
      for (int64_t i = 0; i < 3; ++i) {
        losses[round].push_back(pass(*engine, comm->rank(), i));
      }
      engine->gradients().end_no_sync();
      const nn::ParameterSet& parameters = engine->model()->parameters();
      for (nn::ParamId id = 0; id < parameters.size(); ++id) {
        double squares = 0;
        for (const float g : flat(engine->gradients().get(parameters[id].name)))
          squares += double{g} * g;
        norms[round].push_back(squares);
      }
      engine->discard_gradients();
    }
    EXPECT_EQ(losses[0], losses[1]);
    EXPECT_EQ(norms[0], norms[1]);
    EXPECT_GT(*std::max_element(norms[0].begin(), norms[0].end()), 0);
  });
}

TEST(NoSync, WhatCannotBeInsideIsRefused) {
  for (const int stage : {2, 3}) {
    const auto engine = engine_of(no_sync_config(stage, 1), nullptr);
    EXPECT_THAT(error_of(Code::kUnsupported, [&] { engine->gradients().begin_no_sync(); }),
                HasSubstr("use stage 0 or 1"));
  }
  const auto engine = engine_of(no_sync_config(1, 1), nullptr);
  engine->set_dataset(periodic_data());
  engine->gradients().begin_no_sync();
  EXPECT_THAT(error_of(Code::kState, [&] { engine->gradients().begin_no_sync(); }),
              HasSubstr("do not nest"));
  EXPECT_THAT(error_of(Code::kState, [&] { engine->train_batch(); }), HasSubstr("train_batch"));
  pass(*engine, 0, 0);
  EXPECT_THAT(error_of(Code::kState, [&] { engine->step(); }),
              HasSubstr("a step inside a no_sync scope"));
  pass(*engine, 0, 1);  // the scope goes on
  engine->gradients().end_no_sync();
  EXPECT_TRUE(engine->step().applied);
  // Outside a backward still waits for its step.
  pass(*engine, 0, 2);
  EXPECT_THAT(error_of(Code::kState, [&] { pass(*engine, 0, 3); }), HasSubstr("waits for step"));
  run_ranks(kWorld, [](const std::shared_ptr<Communicator>& comm) {
    const auto other = engine_of(no_sync_config(0, 1), comm);
    other->gradients().begin_no_sync();
    error_of(Code::kState, [&] { other->join(); });
  });
}

}  // namespace
}  // namespace ds::zero_test
