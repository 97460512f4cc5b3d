// Which states an optimizer keeps, that their signs survive eight bits, and what is said about
// states that it does not have.
#include <algorithm>
#include <functional>

#include "fresh_seed.h"
#include "unit/optim/optim_world.h"

namespace ds::optim {
namespace {

using testing::code_of;
using testing::make_places;
using testing::parse_optimizer;
using testing::World;
using testing::WorldOptions;

using Names = std::vector<std::string>;

Names states_of(const std::string& json) {
  World world(make_places({{3}, {4}}), {});
  return world.optimizer(parse_optimizer(json))->states(0);
}

TEST(States, MomentumIsKeptWhereAnyGroupHasSome) {
  const auto with = [](const std::string& type, const std::string& all, const std::string& group) {
    return states_of(R"({"type": ")" + type + R"(", "params": {)" + all +
                     R"(}, "param_groups": [{"name": "a", "lr": 0.1}, {"name": "b")" + group +
                     "}]}");
  };
  const std::string some = R"("momentum": 0.5)", none = R"("momentum": 0)";
  EXPECT_EQ(with("SGD", "", ""), Names());
  EXPECT_EQ(with("SGD", none, ", " + none), Names());
  EXPECT_EQ(with("SGD", some, ""), Names{"momentum_buffer"});
  EXPECT_EQ(with("SGD", "", ", " + some), Names{"momentum_buffer"});
  EXPECT_EQ(with("SGD", some, ", " + none), Names{"momentum_buffer"});
  EXPECT_EQ(with("RMSprop", "", ""), Names{"square_avg"});
  EXPECT_EQ(with("RMSprop", "", ", " + some), (Names{"square_avg", "momentum_buffer"}));
  EXPECT_EQ(with("RMSprop", R"("centered": true)", ""), (Names{"square_avg", "grad_avg"}));
  EXPECT_EQ(with("RMSprop", R"("centered": true, )" + some, ""),
            (Names{"square_avg", "momentum_buffer", "grad_avg"}));
}

TEST(States, AreThoseOfTheRule) {
  EXPECT_EQ(states_of(R"({"type": "AdamW"})"), (Names{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(states_of(R"({"type": "Adam", "params": {"amsgrad": true}})"),
            (Names{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}));
  EXPECT_EQ(states_of(R"({"type": "NAdam"})"), (Names{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(states_of(R"({"type": "Adagrad"})"), Names{"sum"});
  EXPECT_EQ(states_of(R"({"type": "Lion"})"), Names{"exp_avg"});
  EXPECT_EQ(states_of(R"({"type": "Lamb"})"), (Names{"exp_avg", "exp_avg_sq"}));
}

// The largest magnitude of a state of all tensors, which no block's scale exceeds.
double largest(const Optimizer& optimizer, const OpContext& ctx,
               const std::vector<TensorPlace>& places, const std::string& state) {
  double result = 0;
  for (size_t k = 0; k < places.size(); ++k) {
    const std::vector<std::string> states = optimizer.states(k);
    if (std::find(states.begin(), states.end(), state) == states.end()) continue;
    const Tensor values = optimizer.read_state(ctx, k, state);
    for (int64_t i = 0; i < values.elements(); ++i) {
      result = std::max(result, static_cast<double>(std::fabs(values.data<float>()[i])));
    }
  }
  return result;
}

// After one step every rule's states are those of fp32 up to what eight bits lose: half a gap of
// the map, in relation to the largest value of a block, and 2 % of the root mean square.
TEST(States, OfEightBitsAreCloseAfterOneStep) {
  // Half of the widest gap between two values of the dynamic map, in relation to a block's scale:
  // 64 parts share nine tenths, and the last value, 1, is one part and a half from the one before
  // it.
  constexpr double half_gap = 0.675 / 64 * (1 + 1e-5);
  for (const char* json :
       {R"({"type": "AdamW")", R"({"type": "AdamW", "params": {"amsgrad": true})",
        R"({"type": "NAdam")", R"({"type": "Adagrad")", R"({"type": "Lion")", R"({"type": "Lamb")",
        R"({"type": "SGD", "params": {"momentum": 0.9})",
        R"({"type": "RMSprop", "params": {"momentum": 0.9, "centered": true})",
        R"({"type": "RMSprop", "params": {"centered": true})", R"({"type": "Muon")"}) {
    SCOPED_TRACE(str_cat("DS_TEST_SEED=", ds::run_seed(), " ", json));
    WorldOptions options;
    options.seed = ds::run_seed();
    const std::vector<TensorPlace> places = make_places({{300}, {20, 30}, {7}});
    World exact(places, options), small(places, options);
    const auto fp32 = exact.optimizer(parse_optimizer(str_cat(json, "}")));
    const auto int8 =
        small.optimizer(parse_optimizer(str_cat(json, R"(, "state_dtype": "int8"})")));
    for (auto [world, optimizer] : {std::pair(&exact, fp32.get()), std::pair(&small, int8.get())}) {
      world->next_gradients();
      optimizer->step(world->ctx(), world->step_of(*optimizer), world->flat());
    }
    for (size_t k = 0; k < places.size(); ++k) {
      ASSERT_FALSE(fp32->states(k).empty());
      EXPECT_EQ(int8->states(k), fp32->states(k));
      for (const std::string& state : fp32->states(k)) {
        const Tensor a = fp32->read_state(exact.ctx(), k, state);
        const Tensor b = int8->read_state(small.ctx(), k, state);
        const double bound = half_gap * largest(*fp32, exact.ctx(), places, state);
        double squares = 0, errors = 0;
        for (int64_t i = 0; i < a.elements(); ++i) {
          const double error = a.data<float>()[i] - b.data<float>()[i];
          squares += std::pow(a.data<float>()[i], 2);
          errors += std::pow(error, 2);
          EXPECT_LE(std::fabs(error), bound) << state << " of tensor " << k << " at " << i;
        }
        EXPECT_GT(squares, 0) << state;
        // Seven elements are too few for a bound on their mean: their block of 256 holds larger
        // ones of other tensors.
        if (a.elements() >= 256) {
          EXPECT_LE(errors, 0.02 * 0.02 * squares) << state << " of tensor " << k;
        }
      }
    }
  }
}

// A wrong name is reported before anything else that is wrong with the request.
TEST(States, AWrongNameIsReportedFirst) {
  World world(make_places({{64}, {64}}), {});
  const OpContext& ctx = world.ctx();
  const auto half = make_optimizer(parse_optimizer(R"({"type": "AdamW"})"),
                                   owned_places(world.places(), 0, 96), ctx.device);
  const Tensor whole = Tensor::zeros(ctx.device, DType::kFloat32, {64}, MemoryTag::kOther);
  const Tensor wrong = Tensor::zeros(ctx.device, DType::kFloat32, {63}, MemoryTag::kOther);
  EXPECT_EQ(code_of([&] { half->read_state(ctx, 1, "sum"); }), Code::kNotFound);
  EXPECT_EQ(code_of([&] { half->write_state(ctx, 1, "sum", whole); }), Code::kNotFound);
  EXPECT_EQ(code_of([&] { half->write_state(ctx, 0, "sum", wrong); }), Code::kNotFound);
  EXPECT_EQ(code_of([&] { half->state_view(1, "sum"); }), Code::kNotFound);
  float value = 0;
  EXPECT_EQ(code_of([&] { half->read_state_range(1, "sum", 40, 41, &value); }), Code::kNotFound);
  EXPECT_EQ(code_of([&] { half->write_state_range(1, "sum", 40, 41, &value); }), Code::kNotFound);
  // And with a name that is right, what else is wrong.
  EXPECT_EQ(code_of([&] { half->read_state(ctx, 1, "exp_avg"); }), Code::kUnsupported);
  EXPECT_EQ(code_of([&] { half->write_state(ctx, 1, "exp_avg", whole); }), Code::kUnsupported);
  EXPECT_EQ(code_of([&] { half->write_state(ctx, 0, "exp_avg", wrong); }), Code::kInvalidArgument);
  EXPECT_EQ(code_of([&] { half->read_state_range(1, "exp_avg", 40, 41, &value); }),
            Code::kInvalidArgument);
  EXPECT_EQ(code_of([&] { half->read_state_range(1, "exp_avg", 31, 32, &value); }), Code::kOk);
  EXPECT_EQ(code_of([&] { half->write_state_range(1, "exp_avg", 32, 33, &value); }),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace ds::optim
