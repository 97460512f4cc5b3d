// Schedules of the learning rate through an engine: what its rates say before each step, what the
// report of the step says and what the weights show is the schedule's formula, for every parameter
// group. The formulas are written out here as DeepSpeed's lr_schedules states them.
#include <numbers>

#include "attached_state.h"
#include "training_world.h"

namespace ds::properties {
namespace {

constexpr int kSteps = 120;

// The rate of a step by the number of steps before it, for a group of base rate `base`.
using Formula = std::function<double(int64_t before, double base)>;

struct Case {
  std::string name;
  const char* type;
  Json params;
  Formula rate;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

double log_warmup(int64_t calls, int64_t steps) {
  return std::log(static_cast<double>(calls)) / std::log(static_cast<double>(steps));
}

// OneCycle in whole numbers: `stairs` levels up and down, or none.
Formula one_cycle(int64_t first, int64_t second, int64_t up_stairs, int64_t down_stairs,
                  int64_t decay_steps, double decay) {
  return [=](int64_t before, double) {
    const double low = 1e-3, high = 9e-3;
    if (before < first + second || (before == first + second && decay_steps == 0)) {
      const bool rises = before <= first;
      const int64_t at = rises ? before : first + second - before;
      const int64_t of = rises ? first : second, stairs = rises ? up_stairs : down_stairs;
      const double part = stairs == 0
                              ? static_cast<double>(at) / static_cast<double>(of)
                              : static_cast<double>(at * stairs / of) / static_cast<double>(stairs);
      return low + (high - low) * part;
    }
    if (decay_steps == 0) return low;
    const auto periods =
        static_cast<double>(before - first - second) / static_cast<double>(decay_steps);
    return low / (1 + decay * periods);
  };
}

std::vector<Case> cycle_cases() {
  const Json cycle = {{"cycle_min_lr", 1e-3}, {"cycle_max_lr", 9e-3}};
  return {
      {"OneCycleWithDecay", "OneCycle",
       with(cycle, {{"cycle_first_step_size", 30},
                    {"cycle_second_step_size", 40},
                    {"decay_step_size", 10},
                    {"decay_lr_rate", 0.5}}),
       one_cycle(30, 40, 0, 0, 10, 0.5)},
      {"OneCycleOfTwoStairs", "OneCycle",
       with(cycle, {{"cycle_first_step_size", 40}, {"cycle_first_stair_count", 2}}),
       one_cycle(40, 40, 2, 2, 0, 0)},
      {"OneCycleOfUnequalStairs", "OneCycle",
       with(cycle, {{"cycle_first_step_size", 30},
                    {"cycle_second_step_size", 60},
                    {"cycle_first_stair_count", 5},
                    {"cycle_second_stair_count", 3}}),
       one_cycle(30, 60, 5, 3, 0, 0)},
  };
}

std::vector<Case> plain_cases() {
  const auto cosine = [](int64_t before, double base, double part_of_warmup) {
    if (before == 0) return 0.0;
    if (before <= 20) return base * (0.1 + 0.9 * part_of_warmup);
    const double x = std::min(1.0, static_cast<double>(before - 20) / 80);
    return base * (0.02 + 0.98 * 0.5 * (1 + std::cos(std::numbers::pi * x)));
  };
  const Json cosine_params = {{"total_num_steps", 100},
                              {"warmup_num_steps", 20},
                              {"warmup_min_ratio", 0.1},
                              {"cos_min_ratio", 0.02}};
  return {
      {"RangeTestContinuous",
       "LRRangeTest",
       {{"lr_range_test_min_lr", 1e-4},
        {"lr_range_test_step_size", 7},
        {"lr_range_test_step_rate", 3}},
       [](int64_t before, double) { return 1e-4 * (1 + 3.0 * static_cast<double>(before) / 7); }},
      {"RangeTestStairs",
       "LRRangeTest",
       {{"lr_range_test_min_lr", 1e-4},
        {"lr_range_test_step_size", 7},
        {"lr_range_test_step_rate", 3},
        {"lr_range_test_staircase", true}},
       [](int64_t before, double) { return 1e-4 * (1 + 3.0 * static_cast<double>(before / 7)); }},
      {"WarmupLog",
       "WarmupLR",
       {{"warmup_min_lr", 1e-4}, {"warmup_num_steps", 50}},
       [](int64_t before, double base) {
         if (before == 0) return 1e-4;
         return 1e-4 + (base - 1e-4) * (before > 50 ? 1 : log_warmup(before, 50));
       }},
      {"WarmupLinearToAMaximum",
       "WarmupLR",
       {{"warmup_min_lr", 1e-4},
        {"warmup_max_lr", 5e-3},
        {"warmup_num_steps", 50},
        {"warmup_type", "linear"}},
       [](int64_t before, double) {
         const double part =
             before > 50 ? 1 : static_cast<double>(std::max<int64_t>(before - 1, 0)) / 50;
         return 1e-4 + (5e-3 - 1e-4) * part;
       }},
      {"WarmupDecay",
       "WarmupDecayLR",
       {{"warmup_min_lr", 1e-4},
        {"warmup_max_lr", 5e-3},
        {"warmup_num_steps", 30},
        {"total_num_steps", 100}},
       [](int64_t before, double) {
         const double part = before == 0 ? 0
                             : before <= 30
                                 ? log_warmup(before, 30)
                                 : std::max(0.0, (100.0 - static_cast<double>(before - 1)) / 70);
         return 1e-4 + (5e-3 - 1e-4) * part;
       }},
      {"CosineAfterALogWarmup", "WarmupCosineLR", cosine_params,
       [=](int64_t before, double base) {
         return cosine(before, base, before == 0 ? 0 : log_warmup(before, 20));
       }},
      {"CosineAfterALinearWarmup", "WarmupCosineLR",
       with(cosine_params, {{"warmup_type", "linear"}}),
       [=](int64_t before, double base) {
         return cosine(before, base, static_cast<double>(before - 1) / 20);
       }},
      {"None", "", Json::object(), [](int64_t, double base) { return base; }},
  };
}

class SchedulesOfAnEngine : public ::testing::TestWithParam<Case> {};

TEST_P(SchedulesOfAnEngine, AreTheirFormulas) {
  const Case& one = GetParam();
  const double bases[] = {0.01, 0.003, 0.02};
  Json config =
      own_config(0, Json::object(),
                 optimizer("SGD", {{"lr", bases[0]}, {"weight_decay", 0}},
                           {{"param_groups",
                             {{{"name", "second"}, {"match", {"b"}}, {"lr", bases[1]}},
                              {{"name", "nobody"}, {"match", {"none*"}}, {"lr", bases[2]}}}}}));
  config["gradient_clipping"] = 0;
  if (!one.params.empty()) config["scheduler"] = {{"type", one.type}, {"params", one.params}};
  nn::ParameterSet set;
  for (const char* name : {"a", "b"}) {
    nn::Parameter p;
    p.name = name;
    p.shape = Shape{1};
    set.add(p);
  }
  auto model = models::Model::from_parameters(std::move(set));
  Engine engine(dump_json(config), model, nullptr);
  const auto device = make_cpu_device();
  Tensor gradient = Tensor::empty(device, DType::kFloat32, {1}, MemoryTag::kOther);
  *gradient.data<float>() = 1;
  double wanted[2] = {0, 0}, peak = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const std::vector<double> rates = engine.rates();
    ASSERT_EQ(rates.size(), 3u);
    for (size_t group = 0; group < 3; ++group) {
      const double rate = one.rate(step, bases[group]);
      ASSERT_NEAR(rates[group], rate, 1e-12) << "group " << group << " before step " << step + 1;
    }
    peak = std::max(peak, rates[0]);
    for (const int64_t index : {0, 1}) {
      const Tensor* const given = &gradient;
      engine.gradients().add({&index, 1}, {&given, 1});
    }
    const StepReport report = engine.step();
    EXPECT_EQ(report.lr, rates[0]) << "the rate of the default group";
    for (size_t i = 0; i < 2; ++i) {
      wanted[i] -= rates[i];
      ASSERT_NEAR(flat(model->get(i == 0 ? "a" : "b"))[0], wanted[i], 1e-5) << step;
    }
  }
  if (one.type == std::string("OneCycle")) {
    EXPECT_NEAR(peak, 9e-3, 1e-15);
  }
}

INSTANTIATE_TEST_SUITE_P(Cycles, SchedulesOfAnEngine, ::testing::ValuesIn(cycle_cases()),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(Plain, SchedulesOfAnEngine, ::testing::ValuesIn(plain_cases()),
                         [](const auto& one) { return one.param.name; });

// A cycle whose second half has no steps falls to its end at once.
TEST(OneCycle, MayHaveNoSecondHalf) {
  Json config = base_config();
  config["scheduler"] = {{"type", "OneCycle"},
                         {"params",
                          {{"cycle_min_lr", 1e-3},
                           {"cycle_max_lr", 9e-3},
                           {"cycle_first_step_size", 3},
                           {"cycle_second_step_size", 0},
                           {"decay_step_size", 1},
                           {"decay_lr_rate", 1.0}}}};
  const auto engine = make_engine(config);
  const double wanted[] = {1e-3, 1e-3 + 8e-3 / 3, 1e-3 + 16e-3 / 3, 1e-3, 1e-3 / 2, 1e-3 / 3};
  for (const double rate : wanted) {
    EXPECT_NEAR(engine->rates()[0], rate, 1e-12);
    engine->train_batch();
  }
}

// set_lr holds for every group until the schedule moves again.
TEST(RatesThatAreSet, HoldForAllGroupsUntilTheScheduleMoves) {
  Json config =
      with(base_config(),
           optimizer("AdamW", {{"lr", 1e-2}},
                     {{"param_groups", {{{"name", "g"}, {"match", {"*ln_*"}}, {"lr", 1e-3}}}}}));
  const auto engine = make_engine(config), plain = make_engine(config);
  engine->train_batch();
  plain->train_batch();
  engine->set_lr(0.5);
  EXPECT_EQ(engine->rates(), (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(engine->train_batch().lr, 0.5);
  plain->train_batch();
  EXPECT_EQ(engine->rates(), plain->rates());
}

// Weight decay that moves with the applied steps: linear or by half a cosine, then constant. A
// gradient of zero leaves of AdamW's update the decay alone. A group's own decay stays.
TEST(WeightDecaySchedule, MovesAsMegatronsDoes) {
  constexpr double kTopRate = 0.125, kStart = 0.1, kEnd = 0.9;
  for (const char* way : {"constant", "linear", "cosine"}) {
    for (const char* type : {"AdamW", "Lion", "SGD"}) {
      SCOPED_TRACE(str_cat(way, ", ", type));
      Json section = {{"param_groups",
                       {{{"name", "own"}, {"match", {"b"}}, {"weight_decay", 0.25}},
                        {{"name", "rate"}, {"match", {"c"}}, {"lr", kTopRate / 2}}}}};
      if (way != std::string("constant")) {
        section["weight_decay_schedule"] = {
            {"type", way}, {"start", kStart}, {"end", kEnd}, {"total_num_steps", 8}};
      }
      Json config = own_config(0, Json::object(),
                               optimizer(type, {{"lr", kTopRate}, {"weight_decay", 0.5}}, section));
      nn::ParameterSet set;
      for (const char* name : {"a", "b", "c"}) {
        nn::Parameter p;
        p.name = name;
        p.shape = Shape{1};
        p.decays = true;
        set.add(p);
      }
      const auto model = models::Model::from_parameters(std::move(set));
      for (nn::ParamId id = 0; id < 3; ++id) *master_of(*model, id).data<float>() = 1;
      Engine engine(dump_json(config), model, nullptr);
      double a = 1, b = 1, c = 1;
      const Folder folder;
      for (int step = 0; step < 12; ++step) {
        const double x = std::min(1.0, step / 8.0);
        const double part =
            way == std::string("cosine") ? std::pow(std::sin(x * std::numbers::pi / 2), 2) : x;
        const double decay = way == std::string("constant") ? 0.5 : kStart + part * (kEnd - kStart);
        if (step == 5) {  // a resume goes on where it was
          engine.save(folder.path(), "a");
          engine.step();
          engine.load(folder.path(), "a");
        }
        engine.step();
        a *= 1 - kTopRate * decay;
        b *= 1 - kTopRate * 0.25;
        c *= 1 - kTopRate / 2 * decay;
        ASSERT_NEAR(flat(model->get("a"))[0], a, 1e-6) << step;
        ASSERT_NEAR(flat(model->get("b"))[0], b, 1e-6) << step;
        ASSERT_NEAR(flat(model->get("c"))[0], c, 1e-6) << step;
      }
    }
  }
}

// The same for the matrices of Muon and the tensors of LAMB: a schedule that stands still is the
// plain weight decay, to the bit, at every stage.
TEST(WeightDecaySchedule, ThatStandsStillIsThePlainOne) {
  for (const char* type : {"AdamW", "Lamb", "Muon"}) {
    for (const int stage : {0, 1, 3}) {
      SCOPED_TRACE(str_cat(type, ", stage ", stage));
      Json plain = step_config(stage, 2, optimizer(type, {{"lr", 1e-2}, {"weight_decay", 0.3}}));
      if (type == std::string("Muon")) plain["zero_optimization"]["reduce_scatter"] = false;
      Json moving = plain;
      moving["optimizer"]["params"]["weight_decay"] = 0;
      moving["optimizer"]["weight_decay_schedule"] = {
          {"start", 0.3}, {"end", 0.3}, {"total_num_steps", 2}};
      EXPECT_TRUE(same_bits(train({2, plain}).weights, train({2, moving}).weights));
      moving["optimizer"]["weight_decay_schedule"]["start"] = 0.0;
      moving["optimizer"]["weight_decay_schedule"]["total_num_steps"] = 50;
      EXPECT_FALSE(same_bits(train({2, plain, 4}).weights, train({2, moving, 4}).weights));
    }
  }
}

}  // namespace
}  // namespace ds::properties
