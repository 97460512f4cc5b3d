// How ranks and micro batches share a batch changes nothing but the order of sums, with dropout
// too: masks follow the sample.
#include <gtest/gtest.h>

#include <set>

#include "models/adapters.h"
#include "models/lora.h"
#include "zero_world.h"

namespace ds::zero_test {
namespace {

struct Layout {
  int world, micro, accumulation, stage;
  bool recompute = false;
};

Trained train_as(const Layout& layout, const Json& model,
                 const std::function<void(models::Model&)>& prepare) {
  Job job;
  job.world = layout.world;
  job.steps = 5;
  job.model = model;
  job.prepare = prepare;
  // SGD: Adam's first steps turn the rounding of small gradients into whole steps.
  job.config = with(base_config(), {{"train_micro_batch_size_per_gpu", layout.micro},
                                    {"gradient_accumulation_steps", layout.accumulation},
                                    {"seed", 11},
                                    {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.1}}}}},
                                    {"scheduler", nullptr},
                                    {"zero_allow_untested_optimizer", true},
                                    {"zero_optimization", {{"stage", layout.stage}}}});
  job.config["optimizer"]["params"].erase("weight_decay");
  if (layout.recompute) {
    job.config["activation_checkpointing"] = {{"enabled", true}, {"number_checkpoints", 2}};
  }
  return train(job);
}

void expect_alike(const Json& model, const std::function<void(models::Model&)>& prepare) {
  const Trained whole = train_as({1, 8, 1, 0}, model, prepare);
  for (const Layout& layout : {Layout{2, 4, 1, 0}, Layout{4, 2, 1, 1}, Layout{8, 1, 1, 3},
                               Layout{1, 2, 4, 0}, Layout{2, 1, 4, 2}, Layout{2, 2, 2, 0, true}}) {
    const Trained other = train_as(layout, model, prepare);
    for (size_t i = 0; i < whole.losses.size(); ++i) {
      EXPECT_NEAR(other.losses[i], whole.losses[i], 3e-6)
          << "step " << i << " at " << layout.world << " x " << layout.micro << " x "
          << layout.accumulation;
    }
    EXPECT_LT(largest_difference(other.weights, whole.weights), 3e-6)
        << layout.world << " x " << layout.micro << " x " << layout.accumulation;
  }
}

TEST(Layouts, DropoutFollowsTheSample) {
  expect_alike(model_config(0.3), [](models::Model&) {});
}

TEST(Layouts, DropoutOfAdaptersFollowsTheSample) {
  expect_alike(model_config(0.2), [](models::Model& model) {
    models::LoraOptions lora;
    lora.r = 4;
    lora.dropout = 0.4;
    lora.target_modules = {"all-linear"};
    lora.seed = 5;
    models::add_lora(model, lora);
  });
}

// A seed's masks differ between steps and between the samples of a step.
TEST(Layouts, MasksChangeFromStepToStep) {
  const auto losses = [](double dropout) {
    Job job;
    job.world = 1;
    job.steps = 4;
    job.model = model_config(dropout);
    job.config = zero_config(0, Json::object(),
                             {{"optimizer", {{"params", {{"lr", 0.0}}}}},
                              {"scheduler", nullptr},
                              {"train_micro_batch_size_per_gpu", 1}});
    return train(job).losses;
  };
  const std::vector<double> with_masks = losses(0.5), without = losses(0);
  std::set<double> offsets;
  for (size_t i = 0; i < without.size(); ++i) offsets.insert(with_masks[i] - without[i]);
  EXPECT_EQ(offsets.size(), without.size());
}

}  // namespace
}  // namespace ds::zero_test
