// scheduler and the parameters of each schedule.
#include "config/config_table.h"

namespace ds {
namespace {

using namespace keys;

Key rate(const char* name, std::optional<double> value, const char* description) {
  Key item = any_number();
  item = std::move(item).at_least(0);
  return number(name, value, description).at_least(0).or_list_of(std::move(item)).items(1, 1024);
}

// Of a schedule with a warm-up.
template <class Schedule>
Key warmup_steps() {
  return integer("warmup_num_steps", 1000, "Steps of the warm-up; at least 2 are taken.")
      .at_least(0)
      .to(&Schedule::warmup_num_steps);
}
template <class Schedule>
Key warmup_type() {
  return choice("warmup_type", {"log", "linear"}, "log", "Shape of the warm-up.")
      .chooses(std::vector{WarmupShape::kLog, WarmupShape::kLinear}, &Schedule::warmup_type);
}
Key last_batch_iteration() {
  return integer("last_batch_iteration", -1, "Steps that the schedule begins after; -1: none.")
      .at_least(-1)
      .needs("a schedule that begins later");
}
template <class Schedule>
Key total_steps() {
  return integer("total_num_steps", std::nullopt, "Steps of the whole schedule.")
      .must_be_given()
      .at_least(1)
      .to(&Schedule::total_num_steps);
}

std::vector<Key> range_test_rows() {
  return {
      rate("lr_range_test_min_lr", 1e-3, "First learning rate.")
          .to(&LrRangeTestConfig::lr_range_test_min_lr),
      integer("lr_range_test_step_size", 2000, "Steps per unit of growth.")
          .above(0)
          .to(&LrRangeTestConfig::lr_range_test_step_size),
      number("lr_range_test_step_rate", 1.0, "Growth per unit.")
          .at_least(0)
          .to(&LrRangeTestConfig::lr_range_test_step_rate),
      flag("lr_range_test_staircase", false, "Grow in whole units.")
          .to(&LrRangeTestConfig::lr_range_test_staircase),
      last_batch_iteration(),
  };
}

std::vector<Key> warmup_rows() {
  return {
      rate("warmup_min_lr", 0.0, "First learning rate.").to(&WarmupLrConfig::warmup_min_lr),
      rate("warmup_max_lr", std::nullopt, "Final learning rate; null is the optimizer's lr.")
          .to(&WarmupLrConfig::warmup_max_lr),
      warmup_steps<WarmupLrConfig>(),
      warmup_type<WarmupLrConfig>(),
      last_batch_iteration(),
  };
}

std::vector<Key> warmup_decay_rows() {
  return {
      total_steps<WarmupDecayLrConfig>(),
      rate("warmup_min_lr", 0.0, "First learning rate.").to(&WarmupDecayLrConfig::warmup_min_lr),
      rate("warmup_max_lr", 0.001, "Learning rate after the warm-up.")
          .to(&WarmupDecayLrConfig::warmup_max_lr),
      warmup_steps<WarmupDecayLrConfig>(),
      warmup_type<WarmupDecayLrConfig>(),
      last_batch_iteration(),
  };
}

std::vector<Key> cosine_rows() {
  return {
      total_steps<WarmupCosineLrConfig>(),
      number("warmup_min_ratio", 0.0,
             "Rate over the optimizer's lr where the warm-up begins: at the second step. The first "
             "step's rate is 0, as in DeepSpeed.")
          .at_least(0)
          .to(&WarmupCosineLrConfig::warmup_min_ratio),
      warmup_steps<WarmupCosineLrConfig>(),
      number("cos_min_ratio", 1e-4, "Final rate over the optimizer's lr.")
          .at_least(0)
          .to(&WarmupCosineLrConfig::cos_min_ratio),
      warmup_type<WarmupCosineLrConfig>(),
      last_batch_iteration(),
  };
}

std::vector<Key> one_cycle_rows() {
  return {
      rate("cycle_min_lr", std::nullopt, "Learning rate at both ends.")
          .must_be_given()
          .to(&OneCycleConfig::cycle_min_lr),
      rate("cycle_max_lr", std::nullopt, "Learning rate at the peak.")
          .must_be_given()
          .to(&OneCycleConfig::cycle_max_lr),
      integer("cycle_first_step_size", 2000, "Steps up.")
          .above(0)
          .to(&OneCycleConfig::cycle_first_step_size),
      integer("cycle_second_step_size", std::nullopt, "Steps down; null equals the steps up.")
          .at_least(0)
          .to(&OneCycleConfig::cycle_second_step_size),
      integer("cycle_first_stair_count", 0, "Stairs on the way up; 0 is continuous.")
          .at_least(0)
          .to(&OneCycleConfig::cycle_first_stair_count),
      integer("cycle_second_stair_count", std::nullopt,
              "Stairs on the way down; null equals those on the way up.")
          .at_least(0)
          .to(&OneCycleConfig::cycle_second_stair_count),
      integer("decay_step_size", 0, "Steps per unit of the decay after the cycle; 0 is none.")
          .at_least(0)
          .to(&OneCycleConfig::decay_step_size),
      number("decay_lr_rate", 0.0, "Decay of the learning rate per unit.")
          .at_least(0)
          .to(&OneCycleConfig::decay_lr_rate),
      flag("cycle_momentum", true,
           "Move the momentum against the learning rate, of types that have `betas` (of others, "
           "such as SGD, it stays): the first of them, and the second is 0.99. The first step "
           "takes cycle_min_mom, as in DeepSpeed.")
          .to(&OneCycleConfig::cycle_momentum),
      number("cycle_min_mom", 0.8, "Momentum at the peak.")
          .at_least(0)
          .below(1)
          .to(&OneCycleConfig::cycle_min_mom),
      number("cycle_max_mom", 0.9, "Momentum at both ends.")
          .at_least(0)
          .below(1)
          .to(&OneCycleConfig::cycle_max_mom),
      number("decay_mom_rate", 0.0, "Decay of the momentum per unit.")
          .at_least(0)
          .to(&OneCycleConfig::decay_mom_rate),
      last_batch_iteration(),
  };
}

}  // namespace

KeyTable scheduler_table() {
  // Names of PyTorch's: their parameters are kept unread, and the type is refused.
  const auto foreign = [] { return table("", {}).accepts_other_keys(); };
  return table(
             "The learning-rate schedule; it advances with every optimizer step that was not "
             "skipped. Rates may be lists: one for the parameters of no group, then one for each "
             "of "
             "param_groups.",
             {
                 choice("type",
                        {"LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR",
                         "StepLR", "MultiStepLR", "ExponentialLR", "CosineAnnealingLR",
                         "CosineAnnealingWarmRestarts", "ConstantLR", "LinearLR", "PolynomialLR",
                         "CyclicLR", "OneCycleLR", "ReduceLROnPlateau"},
                        std::nullopt, "Schedule.")
                     .must_be_given()
                     .needs("a schedule of PyTorch's", {"LRRangeTest", "OneCycle", "WarmupLR",
                                                        "WarmupDecayLR", "WarmupCosineLR"}),
                 section_by("params", "type",
                            {
                                {"LRRangeTest", table("", range_test_rows())},
                                {"OneCycle", table("", one_cycle_rows())},
                                {"WarmupLR", table("", warmup_rows())},
                                {"WarmupDecayLR", table("", warmup_decay_rows())},
                                {"WarmupCosineLR", table("", cosine_rows())},
                                {"StepLR", foreign()},
                                {"MultiStepLR", foreign()},
                                {"ExponentialLR", foreign()},
                                {"CosineAnnealingLR", foreign()},
                                {"CosineAnnealingWarmRestarts", foreign()},
                                {"ConstantLR", foreign()},
                                {"LinearLR", foreign()},
                                {"PolynomialLR", foreign()},
                                {"CyclicLR", foreign()},
                                {"OneCycleLR", foreign()},
                                {"ReduceLROnPlateau", foreign()},
                            },
                            "Parameters of the schedule."),
             })
      .ignores_other_keys();
}

}  // namespace ds
