// fp16 and bf16 on several ranks: scripts of overflows, loss scales, types that gradients travel
// in.
#include "world.h"

namespace ds::properties {
namespace {

using ::testing::Values;

const std::vector<Shape> kOverflowShapes = {{33}, {8, 4}, {5}};

constexpr const char* kOptimizers[] = {"AdamW", "Lamb", "Lion", "Muon"};

class Overflows : public ::testing::TestWithParam<int> {
 protected:
  // fp16 with the given rules of its scale.
  static Json config(const char* optimizer, const Json& rules) {
    return given_config(
        GetParam(), {optimizer_config(optimizer), {{"fp16", with({{"enabled", true}}, rules)}}});
  }
};

INSTANTIATE_TEST_SUITE_P(Stages, Overflows, Values(0, 1, 2, 3),
                         [](const auto& one) { return str_cat("Stage", one.param); });

// x: one rank alone has a number that is not finite. The scale follows its rules, all ranks skip,
// and the weights are, to the bit, those of a run that had the clean steps alone.
void run_script(const Json& config) {
  constexpr const char* kScript = "xx...x...xx.";
  const std::vector<double> scales = {256, 128, 128, 128, 256, 256, 256, 256, 512, 512, 256, 256};
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kBad[] = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(config), given_model(kOverflowShapes, DType::kFloat16), comm);
    Engine clean(dump_json(patched(config, {{{"fp16", {{"loss_scale_window", 1000}}}}})),
                 given_model(kOverflowShapes, DType::kFloat16), comm);
    int64_t applied = 0;
    for (size_t i = 0; i < scales.size(); ++i) {
      const bool overflows = kScript[i] == 'x';
      const bool here = overflows && static_cast<int>(i % 2) == comm->rank();
      give(engine, 2, [&](int64_t at) {
        return here && at == 3 ? kBad[i % 3] : exact_gradient(2, at, comm->rank(), applied);
      });
      give_exact(engine, comm->rank(), applied, [](int64_t id) { return id != 2; });
      const StepReport report = engine.step();
      EXPECT_EQ(report.applied, !overflows) << "step " << i;
      EXPECT_EQ(report.first_bad_tensor, overflows ? "p2" : "");
      EXPECT_EQ(engine.loss_scale(), scales[i]) << "step " << i;
      if (overflows) continue;
      give_exact(clean, comm->rank(), applied);
      EXPECT_TRUE(clean.step().applied);
      ++applied;
    }
    EXPECT_EQ(engine.optimizer_steps(), applied);
    EXPECT_EQ(engine.progress().skipped, static_cast<int64_t>(scales.size()) - applied);
    EXPECT_TRUE(same_bits(values(engine), values(clean)));
  });
}

TEST_P(Overflows, OfOneRankAreSkippedByAll) {
  for (const char* const optimizer : kOptimizers) {
    SCOPED_TRACE(optimizer);
    run_script(config(optimizer,
                      {{"initial_scale_power", 8}, {"hysteresis", 2}, {"loss_scale_window", 2}}));
  }
}

// One overflow after another halves the scale each time; at the lower bound training ends with an
// error on every rank, and the weights are what they were.
TEST_P(Overflows, OneAfterAnotherHalveTheScale) {
  const Json halving =
      config("AdamW", {{"initial_scale_power", 5}, {"hysteresis", 1}, {"min_loss_scale", 4}});
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(halving), given_model(kOverflowShapes, DType::kFloat16), comm);
    const std::vector<float> before = values(engine);
    const auto overflow = [&] {
      give(engine, 0, [](int64_t) { return std::numeric_limits<float>::infinity(); });
      give_exact(engine, comm->rank(), 0, [](int64_t id) { return id != 0; });
      return engine.step();
    };
    for (const double scale : {16.0, 8.0, 4.0}) {
      EXPECT_FALSE(overflow().applied);
      EXPECT_EQ(engine.loss_scale(), scale);
    }
    EXPECT_THAT(error_of(Code::kState, [&] { overflow(); }), ::testing::HasSubstr("scale"));
    EXPECT_TRUE(same_bits(values(engine), before));
  });
}

// A window of clean steps doubles the scale at every stage, and overflows nowhere.
TEST_P(Overflows, CleanStepsDoubleTheScale) {
  for (const char* const optimizer : kOptimizers) {
    const Json doubling = config(optimizer, {{"initial_scale_power", 4}, {"loss_scale_window", 2}});
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(doubling), given_model(kOverflowShapes, DType::kFloat16), comm);
      for (const double scale : {16, 16, 32, 32, 64, 64, 128}) {
        give_exact(engine, comm->rank(), static_cast<int64_t>(scale));
        EXPECT_TRUE(engine.step().applied);
        EXPECT_EQ(engine.loss_scale(), scale) << optimizer;
      }
      EXPECT_EQ(engine.progress().skipped, 0);
    });
  }
}

// A gradient of zero, or none at all on any rank, is no overflow and no reason to fail.
TEST_P(Overflows, NoGradientIsNone) {
  for (const char* const optimizer : kOptimizers) {
    SCOPED_TRACE(optimizer);
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(config(optimizer, Json::object())),
                    given_model(kOverflowShapes, DType::kFloat16), comm);
      for (int step = 0; step < 3; ++step) {
        give(engine, 1, [](int64_t) { return 0.0f; });
        const StepReport report = engine.step();
        EXPECT_TRUE(report.applied);
        EXPECT_EQ(report.grad_norm, 0);
        EXPECT_TRUE(all_finite(values(engine)));
      }
      EXPECT_EQ(engine.progress().skipped, 0);
    });
  }
}

// Ranks that lack some gradients, or all: the mean counts theirs as zero.
void train_with_gaps(int stage, const char* precision, const char* optimizer) {
  constexpr int kWorld = 4, kSteps = 3;
  const auto has = [](int64_t id, int64_t rank) { return rank != 3 && (rank % 2 == 0 || id == 1); };
  const DType type = type_of(precision);
  const Json config =
      given_config(stage, {optimizer_config(optimizer), precision_config(precision)});
  const std::vector<float> expected =
      one_process(config, kOverflowShapes, type, kSteps, kWorld,
                  [&](int64_t id, int64_t i, int rank, int step) {
                    return has(id, rank) ? exact_gradient(id, i, rank, step) : 0.0f;
                  });
  run_ranks(kWorld, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(config), given_model(kOverflowShapes, type), comm);
    for (int step = 0; step < kSteps; ++step) {
      // At stage 3 every rank names the same parameters in the same order.
      for (int64_t id = 2; id >= 0; --id) {
        const bool mine = has(id, comm->rank());
        if (stage < 3 && !mine) continue;
        give(engine, id,
             [&](int64_t i) { return mine ? exact_gradient(id, i, comm->rank(), step) : 0.0f; });
      }
      EXPECT_TRUE(engine.step().applied);
    }
    EXPECT_TRUE(same_bits(values(engine), expected));
  });
}

TEST_P(Overflows, RanksMayLackGradients) {
  for (const char* const optimizer : kOptimizers) {
    for (const char* const precision : {"fp32", "fp16"}) {
      SCOPED_TRACE(str_cat(optimizer, " ", precision));
      train_with_gaps(GetParam(), precision, optimizer);
    }
  }
}

class PrecisionByStage : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Stages, PrecisionByStage, Values(0, 1, 2, 3),
                         [](const auto& one) { return str_cat("Stage", one.param); });

// bf16 on two ranks: with the check every bad step is skipped and counted; without it none is, and
// the weights do become what the gradients say.
TEST_P(PrecisionByStage, TheBf16CheckDecidesWhatABadStepDoes) {
  for (const bool check : {true, false}) {
    const Json config =
        given_config(GetParam(), {{{"bf16", {{"enabled", true}, {"check_grad_overflow", check}}}}});
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(config), given_model(kOverflowShapes, DType::kBFloat16), comm);
      const std::vector<float> before = values(engine);
      for (int step = 0; step < 3; ++step) {
        const bool here = comm->rank() == step % 2;
        give(engine, 1, [&](int64_t) { return here ? std::nanf("") : 1.0f; });
        const StepReport report = engine.step();
        EXPECT_EQ(report.applied, !check);
        EXPECT_EQ(report.skip_reason, check ? SkipReason::kNonFinite : SkipReason::kNone);
      }
      EXPECT_EQ(engine.progress().skipped, check ? 3 : 0);
      EXPECT_EQ(engine.optimizer_steps(), check ? 0 : 3);
      EXPECT_EQ(same_bits(values(engine), before), check);
      EXPECT_EQ(all_finite(values(engine)), check);
      give_exact(engine, comm->rank(), 0);
      EXPECT_TRUE(engine.step().applied);
    });
  }
}

// A static scale that is no power of 2 stays, and training follows the one of 128 beside it.
TEST_P(PrecisionByStage, AStaticScaleStays) {
  const auto config = [&](int stage, double scale) {
    return zero_config(
        stage, {{"reduce_bucket_size", 3000}},
        {{"fp16", {{"enabled", true}, {"loss_scale", scale}}}, {"scheduler", nullptr}});
  };
  const Job job{2, config(GetParam(), 138)};
  const Trained trained = train(job);
  EXPECT_TRUE(same_bits(trained.weights, train({2, config(0, 138)}).weights));
  const Trained even = train({2, config(GetParam(), 128)});
  EXPECT_FALSE(same_bits(trained.weights, even.weights));
  // Gradients of fp16 carry 11 bits.
  EXPECT_NEAR(trained.norms[0], even.norms[0], 1e-3 * even.norms[0]);
  for (size_t i = 0; i < trained.losses.size(); ++i) {
    EXPECT_NEAR(trained.losses[i], even.losses[i], 2e-3 * even.losses[i]);
  }
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    auto engine = make_rank_engine(job, comm);
    const std::vector<float> before = values(*engine);
    for (int step = 0; step < 3; ++step) {
      const StepReport report = engine->train_batch();
      EXPECT_TRUE(report.applied);
      EXPECT_EQ(report.loss_scale, 138);
    }
    EXPECT_EQ(engine->loss_scale(), 138);
    EXPECT_FALSE(same_bits(values(*engine), before));
  });
}

// Rates up and down, and the momentum against them, in low precision at every stage.
TEST_P(PrecisionByStage, OneCycleRunsInLowPrecision) {
  const Json cycle = {{"type", "OneCycle"},
                      {"params",
                       {{"cycle_min_lr", 0.001},
                        {"cycle_max_lr", 0.005},
                        {"cycle_first_step_size", 2},
                        {"cycle_second_step_size", 2}}}};
  for (const char* const precision : {"fp16", "bf16"}) {
    const Json zero = {{"reduce_bucket_size", 3000}};
    Job job{2, zero_config(GetParam(), zero, precision_config(precision)), 5};
    job.config["scheduler"] = cycle;
    Job plain = job;
    plain.config["zero_optimization"]["stage"] = 0;
    EXPECT_TRUE(same_bits(train(job).weights, train(plain).weights));
    run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
      auto engine = make_rank_engine(job, comm);
      // DeepSpeed's cycle: the rate of step t is that after t steps.
      for (const double rate : {0.001, 0.003, 0.005, 0.003, 0.001}) {
        const StepReport report = engine->train_batch();
        EXPECT_TRUE(report.applied);
        EXPECT_NEAR(report.lr, rate, 1e-12) << precision;
      }
    });
  }
}

float rounded(float x, DType type) {
  return type == DType::kFloat16    ? to_float(to_float16(x))
         : type == DType::kBFloat16 ? to_float(to_bfloat16(x))
                                    : x;
}

// Gradients of a built-in model travel in communication_data_type, whatever the type of the
// computation: the mean of the rounded ones, rounded once. Weights stay finite.
void check_means(int stage, const char* compute, const char* travel) {
  const Json config = zero_config(
      stage, {{"reduce_bucket_size", 3000}},
      patched(
          {{"communication_data_type", travel}, {"scheduler", nullptr}, {"gradient_clipping", 0}},
          {precision_config(compute)}));
  const std::vector<const char*> names = {"h.0.mlp.c_fc.weight", "ln_f.bias", "wte.weight"};
  // What each rank has alone: one process for each, which rounds nothing on the way.
  std::vector<std::vector<float>> alone[2];
  for (const int rank : {0, 1}) {
    Json own = config;
    own["zero_optimization"]["stage"] = 0;
    Engine engine(dump_json(own), models::Model::create(model_config(0), 3), nullptr);
    engine.backward(engine.forward(token_batch(rank, 0)));
    for (const char* const name : names) alone[rank].push_back(flat(engine.gradients().get(name)));
  }
  const DType type = type_of(travel);
  run_ranks(2, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(config), models::Model::create(model_config(0), 3), comm);
    engine.backward(engine.forward(token_batch(comm->rank(), 0)));
    for (size_t k = 0; k < names.size(); ++k) {
      const std::vector<float> mean = flat(engine.gradients().get(names[k]));
      for (size_t i = 0; i < mean.size(); ++i) {
        const float sum = rounded(alone[0][k][i], type) + rounded(alone[1][k][i], type);
        ASSERT_EQ(mean[i], rounded(sum / 2, type)) << names[k] << " " << i;
      }
    }
    EXPECT_TRUE(engine.step().applied);
    EXPECT_TRUE(all_finite(values(engine)));
  });
}

TEST_P(PrecisionByStage, MeansAreOfGradientsInTheTypeThatTravels) {
  for (const char* const compute : {"fp32", "bf16", "fp16"}) {
    for (const char* const travel : {"fp32", "bf16", "fp16"}) {
      SCOPED_TRACE(str_cat(compute, " by ", travel));
      check_means(GetParam(), compute, travel);
    }
  }
}

}  // namespace
}  // namespace ds::properties
