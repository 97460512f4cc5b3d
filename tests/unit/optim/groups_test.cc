// Width factors are those of the mu rules alone.
#include "optim/groups.h"

#include "unit/optim/optim_world.h"

namespace ds::optim {
namespace {

TEST(WidthFactors, AreOneWithoutARule) {
  OptimizerConfig config = testing::parse_optimizer(
      R"({"type": "MuSGD", "params": {"base_shapes": [{"match": ["*"], "shape": [2, 6]}]}})");
  const nn::Parameter parameter{"a.w", {8, 12}};
  EXPECT_EQ(width_factors(config, parameter).rate, 2);  // (8 / 2) / (12 / 6)
  config.mu = MuRule::kNone;
  EXPECT_EQ(width_factors(config, parameter).rate, 1);
  EXPECT_EQ(width_factors(config, parameter).decay, 1);
  config.mu = MuRule::kSgd;
  config.base_shapes[0].match = {"b.*"};
  EXPECT_EQ(width_factors(config, parameter).rate, 1) << "no shape is given for it";
}

}  // namespace
}  // namespace ds::optim
