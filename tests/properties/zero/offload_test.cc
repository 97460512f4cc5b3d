// Optimizer state in files on several ranks: what is asserted of ranks that keep theirs in memory
// holds there, too.
#include "world.h"

namespace ds::properties {
namespace {

using ::testing::Combine;
using ::testing::Values;

const std::vector<Shape> kOffloadedShapes = {{23, 5}, {7}, {1}, {6, 4}};
constexpr int kWorld = 2;

Json in_files(const Folder& folder) {
  return {{"zero_optimization",
           {{"offload_optimizer", {{"device", "nvme"}, {"nvme_path", folder.path()}}}}}};
}

class OffloadedRanks : public ::testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  Json config(const std::vector<Json>& changes = {}) const {
    std::vector<Json> all = {optimizer_config("AdamW"), precision_config(precision()),
                             in_files(folder_)};
    all.insert(all.end(), changes.begin(), changes.end());
    return given_config(std::get<0>(GetParam()), all);
  }
  const char* precision() const { return std::get<1>(GetParam()); }
  DType type() const { return type_of(precision()); }

 private:
  Folder folder_;
};

INSTANTIATE_TEST_SUITE_P(Everywhere, OffloadedRanks,
                         Combine(Values(1, 2, 3), Values("fp32", "bf16", "fp16")),
                         [](const auto& one) {
                           return str_cat("Stage", std::get<0>(one.param), "_",
                                          std::get<1>(one.param));
                         });

// A bad gradient of one rank skips the step of both, which leaves weights and states as they were;
// the next step is as good as any. Without the check of bf16 the weights become what it says.
TEST_P(OffloadedRanks, SkipABadStepTogether) {
  std::vector<Json> forms = {Json::object()};
  if (type() == DType::kBFloat16) forms.push_back({{"bf16", {{"check_grad_overflow", false}}}});
  for (const Json& form : forms) {
    const bool check = form.empty();
    const Json bad = config({form});
    run_ranks(kWorld, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(bad), given_model(kOffloadedShapes, type()), comm);
      give_exact(engine, comm->rank(), 0);
      EXPECT_TRUE(engine.step().applied);
      const std::vector<float> before = values(engine);
      const std::vector<float> moment = flat(engine.values().optimizer_state("p0", "exp_avg"));
      const double scale = engine.loss_scale();
      for (int step = 0; step < kWorld; ++step) {
        const bool here = comm->rank() == step;
        give(engine, 0, [&](int64_t) { return here ? std::nanf("") : 1.0f; });
        const StepReport report = engine.step();
        EXPECT_EQ(report.applied, !check);
        EXPECT_EQ(report.skip_reason == SkipReason::kNone, !check);
      }
      EXPECT_EQ(engine.progress().skipped, check ? kWorld : 0);
      EXPECT_EQ(same_bits(values(engine), before), check);
      EXPECT_EQ(all_finite(values(engine)), check);
      if (!check) return;
      EXPECT_TRUE(same_bits(flat(engine.values().optimizer_state("p0", "exp_avg")), moment));
      EXPECT_EQ(engine.loss_scale() < scale, type() == DType::kFloat16);
      give_exact(engine, comm->rank(), 1);
      EXPECT_TRUE(engine.step().applied);
      EXPECT_FALSE(same_bits(values(engine), before));
      EXPECT_TRUE(all_finite(values(engine)));
    });
  }
}

// Buckets of every size, below the smallest parameter too, with and without overlap, give the bits
// of one process in memory that has the mean.
TEST_P(OffloadedRanks, BucketsOfEverySizeGiveTheSameBits) {
  constexpr int kSteps = 2, kMicro = 3;
  const Json plain = given_config(std::get<0>(GetParam()),
                                  {optimizer_config("AdamW"), precision_config(precision())});
  const std::vector<float> expected =
      one_process(plain, kOffloadedShapes, type(), kSteps, kWorld,
                  [](int64_t id, int64_t i, int rank, int step) {
                    float sum = 0;
                    for (int64_t k = 0; k < kMicro; ++k) {
                      sum += exact_gradient(id, i, rank, step * kMicro + k);
                    }
                    return sum;
                  });
  for (const int64_t bucket : {1, 20, 1'000'000}) {
    for (const bool overlap : {false, true}) {
      const Json bucketed = config({{{"gradient_accumulation_steps", kMicro},
                                     {"zero_optimization",
                                      {{"reduce_bucket_size", bucket},
                                       {"overlap_comm", overlap},
                                       {"contiguous_gradients", overlap}}}}});
      run_ranks(kWorld, [&](const std::shared_ptr<Communicator>& comm) {
        Engine engine(dump_json(bucketed), given_model(kOffloadedShapes, type()), comm);
        for (int64_t i = 0; i < kSteps * kMicro; ++i) {
          give_exact(engine, comm->rank(), i);
          EXPECT_EQ(engine.step().applied, (i + 1) % kMicro == 0);
        }
        EXPECT_TRUE(same_bits(values(engine), expected))
            << "bucket " << bucket << ", overlap " << overlap;
      });
    }
  }
}

// With ignore_unused_parameters false the parameter that no rank gave a gradient is named, and the
// step after that is as good as any.
TEST_P(OffloadedRanks, UnusedParametersAreNamed) {
  for (const bool ignored : {true, false}) {
    const Json strict = config({{{"zero_optimization", {{"ignore_unused_parameters", ignored}}}}});
    run_ranks(kWorld, [&](const std::shared_ptr<Communicator>& comm) {
      Engine engine(dump_json(strict), given_model(kOffloadedShapes, type()), comm);
      give_exact(engine, comm->rank(), 0, [](int64_t id) { return id != 1; });
      if (ignored) {
        EXPECT_TRUE(engine.step().applied);
        return;
      }
      const std::string text = error_of(Code::kState, [&] { engine.step(); });
      EXPECT_THAT(text, ::testing::HasSubstr("p1"));
      EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("p2")));
      give_exact(engine, comm->rank(), 0);
      EXPECT_TRUE(engine.step().applied);
      EXPECT_EQ(engine.progress().steps, 1);
    });
  }
}

// At stage 3 gradients leave before the step.
class OffloadedGradientParts : public OffloadedRanks {};

INSTANTIATE_TEST_SUITE_P(Everywhere, OffloadedGradientParts,
                         Combine(Values(3), Values("fp32", "bf16", "fp16")),
                         [](const auto& one) { return std::get<1>(one.param); });

// Each rank clamps its part of the gradients that have left: the step is that of the clamped mean.
TEST_P(OffloadedGradientParts, ClampedPartsAreWhatTheStepSees) {
  static constexpr float kMost = 0.25f;
  const auto clamped = [](int64_t id, int64_t i, int, int step) {
    float sum = 0;
    for (int rank = 0; rank < kWorld; ++rank) sum += exact_gradient(id, i, rank, step);
    return std::clamp(sum / kWorld, -kMost, kMost);
  };
  const std::vector<float> expected =
      one_process(given_config(3, {optimizer_config("AdamW"), precision_config(precision())}),
                  kOffloadedShapes, type(), 2, kWorld, clamped);
  const Json files = config();
  run_ranks(kWorld, [&](const std::shared_ptr<Communicator>& comm) {
    Engine engine(dump_json(files), given_model(kOffloadedShapes, type()), comm);
    for (int step = 0; step < 2; ++step) {
      give_exact(engine, comm->rank(), step);
      engine.gradients().get("p0");  // what waits in a bucket is reduced
      const float most = kMost * static_cast<float>(engine.loss_scale());
      int64_t changed = 0;
      double squares = 0;
      for (size_t id = 0; id < kOffloadedShapes.size(); ++id) {
        const std::string name = str_cat("p", id);
        const Tensor part = engine.values().local(name, "gradient");
        for (int64_t i = 0; i < part.elements(); ++i) {
          float& g = part.data<float>()[i];
          if (std::abs(g) > most) ++changed;
          g = std::clamp(g, -most, most);
        }
        engine.values().set_local(name, "gradient", part);
        for (int64_t i = 0; i < kOffloadedShapes[id].elements(); ++i) {
          const double g = clamped(static_cast<int64_t>(id), i, 0, step);
          squares += g * g;
        }
      }
      EXPECT_GT(changed, 0);
      EXPECT_NEAR(engine.step().grad_norm, std::sqrt(squares), 1e-6 * std::sqrt(squares));
    }
    EXPECT_TRUE(same_bits(values(engine), expected));
  });
}

}  // namespace
}  // namespace ds::properties
