// The bounds of LAMB's trust ratio.
#include "fresh_seed.h"
#include "unit/optim/optim_world.h"

namespace ds::optim {
namespace {

using testing::make_places;
using testing::parse_optimizer;
using testing::World;
using testing::WorldOptions;

struct Bounds {
  double min, max;
};

class LambBounds : public ::testing::TestWithParam<Bounds> {};

// The first update has elements (1 - b1) g / sqrt((1 - b2) g^2), about 3.2, and weights are about
// 0.2: a ratio of about 0.06, which bounds on either side of it replace. The weights then go by the
// bound.
TEST_P(LambBounds, HoldTheRatio) {
  SCOPED_TRACE(str_cat("DS_TEST_SEED=", ds::run_seed()));
  const Bounds bounds = GetParam();
  const OptimizerConfig config = parse_optimizer(
      str_cat(R"({"type": "Lamb", "params": {"lr": 0.01, "bias_correction": false, "min_coeff": )",
              bounds.min, R"(, "max_coeff": )", bounds.max, "}}"));
  WorldOptions options;
  options.seed = ds::run_seed();
  World world(make_places({{1000}, {40, 50}}), options);
  const auto optimizer = world.optimizer(config);
  std::vector<double> before(static_cast<size_t>(testing::span_of(world.places())));
  world.for_elements(
      [&](const TensorPlace&, int64_t i) { before[static_cast<size_t>(i)] = world.master(i); });
  world.next_gradients();
  optimizer->step(world.ctx(), world.step_of(*optimizer), world.flat());
  for (const TensorPlace& place : world.places()) {
    double weights = 0, updates = 0;
    const auto update = [&](int64_t i) {
      const double g = world.gradient(i);
      return 0.1 * g / (std::sqrt(0.001 * g * g) + config.eps);
    };
    for (int64_t i = place.begin; i < place.end; ++i) {
      weights += std::pow(before[static_cast<size_t>(i)], 2);
      updates += std::pow(update(i), 2);
    }
    const double ratio = std::clamp(std::sqrt(weights / updates), bounds.min, bounds.max);
    const auto tensor = static_cast<size_t>(&place - world.places().data());
    EXPECT_NEAR(optimizer->trust_ratios()[tensor], ratio, 1e-6 * ratio);
    for (int64_t i = place.begin; i < place.end; ++i) {
      ASSERT_NEAR(world.master(i), before[static_cast<size_t>(i)] - 0.01 * ratio * update(i), 1e-6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LambBounds,
                         ::testing::Values(Bounds{0.01, 10}, Bounds{0.5, 10}, Bounds{0.01, 0.02},
                                           Bounds{0.25, 0.25}));

}  // namespace
}  // namespace ds::optim
