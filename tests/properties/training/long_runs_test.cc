// What adds up: a hundred updates of a large tensor, and positions far into a text.
#include <numbers>

#include "attached_state.h"
#include "models/rotary_scaling.h"
#include "ops/rotary.h"
#include "training_world.h"

namespace ds::properties {
namespace {

struct State {
  double p = 0, m = 0, v = 0;
};

// One element's update, and what the tensor's update has in common.
struct Rule {
  std::string name;
  Json section;
  std::function<void(State&, double g, int t)> update;
};
void PrintTo(const Rule& rule, std::ostream* out) { *out << rule.name; }

constexpr double kLongRate = 1e-3, kLongDecay = 0.1;

std::vector<Rule> rules() {
  const Json params = {{"lr", kLongRate}, {"weight_decay", kLongDecay}};
  return {
      {"AdamW", optimizer("AdamW", params),
       [](State& s, double g, int t) {
         s.m = 0.9 * s.m + 0.1 * g;
         s.v = 0.999 * s.v + 0.001 * g * g;
         s.p -= kLongRate *
                (s.m / (1 - std::pow(0.9, t)) / (std::sqrt(s.v / (1 - std::pow(0.999, t))) + 1e-8) +
                 kLongDecay * s.p);
       }},
      {"AdamWithL2", optimizer("Adam", with(params, {{"adam_w_mode", false}})),
       [](State& s, double g, int t) {
         g += kLongDecay * s.p;
         s.m = 0.9 * s.m + 0.1 * g;
         s.v = 0.999 * s.v + 0.001 * g * g;
         s.p -= kLongRate * s.m / (1 - std::pow(0.9, t)) /
                (std::sqrt(s.v / (1 - std::pow(0.999, t))) + 1e-8);
       }},
      {"Adagrad", optimizer("Adagrad", {{"lr", kLongRate}}),
       [](State& s, double g, int) {
         s.v += g * g;
         s.p -= kLongRate * g / (std::sqrt(s.v) + 1e-10);
       }},
      {"Lion", optimizer("Lion", with(params, {{"betas", {0.9, 0.99}}, {"lr", 1e-4}})),
       [](State& s, double g, int) {
         const double u = 0.9 * s.m + 0.1 * g;
         s.p = s.p * (1 - 1e-4 * kLongDecay) - 1e-4 * (u > 0 ? 1 : -1);
         s.m = 0.99 * s.m + 0.01 * g;
       }},
      {"SgdMomentum", optimizer("SGD", {{"lr", kLongRate}, {"momentum", 0.9}}),
       [](State& s, double g, int t) {
         s.m = t == 1 ? g : 0.9 * s.m + g;
         s.p -= kLongRate * s.m;
       }},
      {"Rmsprop", optimizer("RMSprop", {{"lr", kLongRate}}),
       [](State& s, double g, int) {
         s.v = 0.99 * s.v + 0.01 * g * g;
         s.p -= kLongRate * g / (std::sqrt(s.v) + 1e-8);
       }},
  };
}

class LargeTensors : public ::testing::TestWithParam<Rule> {};

// Weights of at most a quarter, so that a hundred roundings of fp32 leave room in a millionth; the
// sign of an element's gradients does not change, so that Lion's has one answer.
TEST_P(LargeTensors, StayWithinAMillionth) {
  constexpr int64_t kElements = 100'003;
  constexpr int kSteps = 100;
  Json config = own_config(1, Json::object(), GetParam().section);
  config["gradient_clipping"] = 0;
  nn::ParameterSet set;
  nn::Parameter p;
  p.name = "w";
  p.shape = Shape{kElements};
  p.decays = true;
  set.add(p);
  const auto model = models::Model::from_parameters(std::move(set));
  std::vector<State> wanted(kElements);
  const Tensor master = master_of(*model, 0);
  for (int64_t i = 0; i < kElements; ++i) {
    master.data<float>()[i] = noise(1, i) / 8;
    wanted[static_cast<size_t>(i)].p = double{master.data<float>()[i]};
  }
  Engine engine(dump_json(config), model, nullptr);
  Tensor gradient =
      Tensor::empty(make_cpu_device(), DType::kFloat32, {kElements}, MemoryTag::kOther);
  const int64_t index = 0;
  const Tensor* const given = &gradient;
  for (int t = 1; t <= kSteps; ++t) {
    for (int64_t i = 0; i < kElements; ++i) {
      const float size = 0.5f + std::abs(noise(2, i, t));
      gradient.data<float>()[i] = i % 3 == 0 ? -size : size;
      GetParam().update(wanted[static_cast<size_t>(i)], double{gradient.data<float>()[i]}, t);
    }
    engine.gradients().add({&index, 1}, {&given, 1});
    ASSERT_TRUE(engine.step().applied);
  }
  const std::vector<float> weights = flat(model->get("w"));
  double worst = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    worst = std::max(worst, std::abs(weights[i] - wanted[i].p));
  }
  RecordProperty("worst", std::to_string(worst));
  EXPECT_LT(worst, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(All, LargeTensors, ::testing::ValuesIn(rules()),
                         [](const auto& rule) { return rule.param.name; });

// Queries and keys of 16 bits turn by the angle of their position as fp32 knows it, also at the
// 4095th: an angle that was rounded to 16 bits would be off by a whole turn.
TEST(LongPositions, TurnByExactAngles) {
  constexpr int64_t kChannels = 64, kPosition = 4095;
  models::RotaryConfig config;
  config.channels = kChannels;
  config.max_positions = kPosition + 1;
  const models::RotaryTables tables(config);
  ThreadPool pool(1);
  const auto device = make_cpu_device();
  const OpContext ctx{device, &pool};
  const Tensor positions = Tensor::empty(device, DType::kInt32, {1, 1}, MemoryTag::kOther);
  *positions.data<int32_t>() = kPosition;
  const nn::RotaryTable table = tables.rows(ctx, positions);
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(dtype_name(type));
    const Tensor x = Tensor::empty(device, type, {1, 1, 1, kChannels}, MemoryTag::kOther);
    Tensor y = Tensor::empty(device, type, {1, 1, 1, kChannels}, MemoryTag::kOther);
    for (int64_t i = 0; i < kChannels; ++i) {
      const float value = noise(3, i);
      if (type == DType::kFloat32) x.data<float>()[i] = value;
      if (type == DType::kBFloat16) x.data<bfloat16>()[i] = to_bfloat16(value);
      if (type == DType::kFloat16) x.data<float16>()[i] = to_float16(value);
    }
    ops::rotary(ctx, x, positions, table.cos, table.sin, {}, y);
    const std::vector<float> before = numbers(x), after = numbers(y);
    const double rounding = type == DType::kFloat32    ? 0x1p-23
                            : type == DType::kBFloat16 ? 0x1p-8
                                                       : 0x1p-11;
    for (size_t i = 0; i < kChannels / 2; ++i) {
      const double angle = kPosition * std::pow(10000.0, -2.0 * static_cast<double>(i) / kChannels);
      const double a = before[i], b = before[i + kChannels / 2];
      // The angle itself is rounded once: 4095 in 24 bits.
      const double allowed = rounding + kPosition * 0x1p-24;
      EXPECT_NEAR(after[i], a * std::cos(angle) - b * std::sin(angle), allowed) << i;
      EXPECT_NEAR(after[i + kChannels / 2], b * std::cos(angle) + a * std::sin(angle), allowed)
          << i;
    }
  }
}

}  // namespace
}  // namespace ds::properties
