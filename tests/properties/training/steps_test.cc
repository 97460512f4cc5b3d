// Which steps are applied.
#include "training_world.h"

namespace ds::properties {
namespace {

// The scaler that a checkpoint held goes on within the bounds of the configuration at hand.
TEST(ResumedScaler, HasTheHysteresisOfTheConfiguration) {
  const auto config = [](int hysteresis) {
    return with(base_config(), {{"scheduler", nullptr},
                                {"fp16",
                                 {{"enabled", true},
                                  {"initial_scale_power", 8},
                                  {"loss_scale_window", 100},
                                  {"hysteresis", hysteresis}}}});
  };
  const Folder folder;
  make_engine(config(5))->save(folder.path(), "patient");
  const auto overflow = [](Engine& engine) {
    const Tensor ids = ids_tensor(std::vector<int64_t>(32, 7), 4);
    for (int micro = 0; micro < 2; ++micro) {
      engine.backward(engine.forward({ids, ids, {}, {}, {}}));
      if (micro == 1) {
        const Tensor bad = engine.gradient("ln_f.weight");
        bad.data<float>()[0] = INFINITY;
        engine.set_gradient("ln_f.weight", bad);
      }
      const StepReport report = engine.step();
      EXPECT_FALSE(report.applied);
    }
    return engine.loss_scale();
  };
  const auto strict = make_engine(config(2));
  strict->load(folder.path(), "patient");
  EXPECT_EQ(overflow(*strict), 256) << "the first is forgiven";
  EXPECT_EQ(overflow(*strict), 128) << "and no more than that";
  const auto patient = make_engine(config(5));
  patient->load(folder.path(), "patient");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(overflow(*patient), 256);
  EXPECT_EQ(overflow(*patient), 128);
}

}  // namespace
}  // namespace ds::properties
