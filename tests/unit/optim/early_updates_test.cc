// Updates ahead of their step: whatever is made ahead, kept or undone, masters, copies and states
// have the bits of an optimizer that makes whole steps.
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <thread>

#include "fresh_seed.h"
#include "optim/early_updates.h"
#include "optim_world.h"

namespace ds::optim::testing {
namespace {

struct AheadCase {
  const char* name;
  const char* optimizer;
  WorldOptions world;
};

const AheadCase kAheadCases[] = {
    {"AdamW",
     R"({"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}})",
     {.model = DType::kBFloat16}},
    {"AdamFp16",
     R"({"type": "Adam", "params": {"lr": 1e-2}})",
     {.gradients = DType::kFloat16, .model = DType::kFloat16, .threads = 2}},
    {"Split",
     R"({"type": "AdamW", "params": {"lr": 1e-2}})",
     {.gradients = DType::kBFloat16, .model = DType::kBFloat16, .split = true}},
    {"Fp32", R"({"type": "Adam", "params": {"lr": 1e-2}})", {}},
    {"States8Bit",
     R"({"type": "AdamW", "params": {"lr": 1e-2}, "state_dtype": "int8"})",
     {.model = DType::kBFloat16}},
    {"StatesBf16",
     R"({"type": "AdamW", "params": {"lr": 1e-2}, "state_dtype": "bf16"})",
     {.model = DType::kBFloat16}},
    {"Nadam", R"({"type": "NAdam", "params": {"lr": 1e-2}})", {.model = DType::kBFloat16}},
    {"Lion", R"({"type": "Lion", "params": {"lr": 1e-3}})", {.model = DType::kBFloat16}},
    {"Sgd",
     R"({"type": "SGD", "params": {"lr": 1e-2, "momentum": 0.9}})",
     {.model = DType::kBFloat16}},
};

// Some larger than what is updated at a time, some far smaller.
std::vector<TensorPlace> places() {
  return make_places({{300, 301}, {7}, {40, 41}, {70'000}, {33}, {1, 2}});
}

class AheadUpdates : public ::testing::TestWithParam<AheadCase> {
 protected:
  AheadUpdates() : plain_(places(), options()), early_(places(), options()) {
    const OptimizerConfig config = parse_optimizer(GetParam().optimizer);
    whole_ = make(plain_, config);
    ahead_ = make(early_, config);
    ahead_->go_ahead(early_.flat(), 2);
  }
  static WorldOptions options() {
    WorldOptions out = GetParam().world;
    out.seed = ds::run_seed();
    return out;
  }
  static std::unique_ptr<Optimizer> make(World& world, const OptimizerConfig& config) {
    return make_optimizer(config, owned_places(world.places(), 0, span_of(world.places())),
                          world.ctx().device, {}, nullptr, nullptr, 1 << 15);
  }
  void next_gradients() {
    plain_.next_gradients();
    early_.next_gradients();
  }
  UpdateStep step(float scale = 1) const { return plain_.step_of(*whole_, scale); }
  // Expects a step whose gradients of some tensors are complete, in some order.
  void expect(const UpdateStep& expected, const std::vector<size_t>& complete) {
    ahead_->expect_step(early_.ctx(), expected, early_.flat());
    for (const size_t tensor : complete) ahead_->gradient_complete(tensor);
  }
  // Until what can be made is.
  void wait_for(double share) const {
    while (ahead_->ahead()->share < share) std::this_thread::yield();
  }
  void both_step(const UpdateStep& made) {
    whole_->step(plain_.ctx(), made, plain_.flat());
    ahead_->step(early_.ctx(), made, early_.flat());
  }
  static std::vector<uint8_t> bytes(const FlatTensor& array) {
    if (!array) return {};
    const auto* data = static_cast<const uint8_t*>(array.memory().raw());
    return {data, data + array.memory().bytes()};
  }
  void compare(const char* when) {
    EXPECT_EQ(bytes(early_.flat().masters), bytes(plain_.flat().masters)) << when;
    EXPECT_EQ(bytes(early_.flat().model), bytes(plain_.flat().model)) << when;
    EXPECT_EQ(bytes(early_.flat().low_halves), bytes(plain_.flat().low_halves)) << when;
    for (size_t i = 0; i < plain_.places().size(); ++i) {
      for (const std::string& state : whole_->states(i)) {
        const Tensor a = ahead_->read_state(early_.ctx(), i, state);
        const Tensor b = whole_->read_state(plain_.ctx(), i, state);
        EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(b.bytes())), 0)
            << when << ": " << state << " of tensor " << i;
      }
    }
  }

  World plain_, early_;
  std::unique_ptr<Optimizer> whole_, ahead_;
};
INSTANTIATE_TEST_SUITE_P(Optimizers, AheadUpdates, ::testing::ValuesIn(kAheadCases),
                         [](const auto& one) { return one.param.name; });

TEST_P(AheadUpdates, KeptUpdatesAreThoseOfTheStep) {
  for (int i = 0; i < 4; ++i) {
    next_gradients();
    expect(step(), {5, 0, 3, 1, 4, 2});
    wait_for(1);
    both_step(step());
    EXPECT_EQ(ahead_->ahead()->share, 1);
    EXPECT_FALSE(ahead_->ahead()->undone);
    compare("all was made ahead");
  }
  expect(step(), {5, 0, 3});
  ahead_->undo_ahead();  // no step is expected any more
  EXPECT_EQ(ahead_->ahead()->share, 1) << "of the last step";
  compare("undone");
}

TEST_P(AheadUpdates, WhatIsMissingIsMadeByTheStep) {
  for (int i = 0; i < 4; ++i) {
    next_gradients();
    // The first tensor fills two runs but for their end, which waits for others.
    expect(step(), {0, 0});
    wait_for(0.3);
    both_step(step());
    EXPECT_GT(ahead_->ahead()->share, 0.3);
    EXPECT_LT(ahead_->ahead()->share, 0.7);
    compare("a part was made ahead");
    next_gradients();
    both_step(step());  // nothing was expected
    EXPECT_EQ(ahead_->ahead()->share, 0);
    compare("nothing was made ahead");
  }
}

TEST_P(AheadUpdates, UpdatesForAnotherStepAreUndone) {
  for (int i = 0; i < 4; ++i) {
    next_gradients();
    expect(step(), {0, 1, 2, 3, 4, 5});
    wait_for(1);
    both_step(step(0.37F));  // clipped
    EXPECT_EQ(ahead_->ahead()->share, 0);
    EXPECT_TRUE(ahead_->ahead()->undone);
    compare("clipped");
    // Another learning rate.
    next_gradients();
    expect(step(), {0, 1, 2, 3, 4, 5});
    wait_for(0.3);
    UpdateStep slower = step();
    slower.rates[0] /= 2;
    both_step(slower);
    compare("slower");
  }
}

TEST_P(AheadUpdates, WithoutAStepNothingIsLeftOfThem) {
  for (int i = 0; i < 3; ++i) {
    next_gradients();
    expect(step(), {0, 1, 2, 3, 4, 5});
    wait_for(0.3);
    ahead_->undo_ahead();
    compare("undone");
    // And by who looks at states.
    expect(step(), {3, 0, 2, 1, 4, 5});
    wait_for(1);
    if (!whole_->states(0).empty()) ahead_->read_state(early_.ctx(), 0, whole_->states(0)[0]);
    EXPECT_EQ(ahead_->ahead()->share, 0);
    compare("looked at");
    expect(step(), {2, 4, 1, 0, 5, 3});
    wait_for(1);
    ahead_->state_view(0, whole_->states(0).at(0));
    EXPECT_EQ(ahead_->ahead()->share, 0);
    compare("viewed");
    // Or changes them.
    const std::vector<std::string> states = whole_->states(3);
    expect(step(), {0, 1, 2, 3, 4, 5});
    if (!states.empty()) {
      const std::vector<float> values(100, 0.25F);
      whole_->write_state_range(3, states[0], 50, 150, values.data());
      ahead_->write_state_range(3, states[0], 50, 150, values.data());
    }
    both_step(step());
    compare("after a step");
  }
}

// What a checkpoint brings is not undone later.
TEST_P(AheadUpdates, ALoadFollowsThem) {
  next_gradients();
  both_step(step());
  expect(step(), {0, 1, 2, 3, 4, 5});
  wait_for(1);
  for (Optimizer* const one : {whole_.get(), ahead_.get()}) one->begin_load();
  for (World* const world : {&plain_, &early_}) {
    const FlatTensors& flat = world->flat();
    const Tensor weights = (flat.masters ? flat.masters : flat.model).memory();
    std::memset(weights.raw(), 0x3c, static_cast<size_t>(weights.bytes()));
  }
  for (Optimizer* const one : {whole_.get(), ahead_.get()}) one->undo_ahead();
  compare("loaded");
  next_gradients();
  both_step(step());
  compare("the step after it");
}

// Gradients that overflowed: what they make of the state is undone.
TEST_P(AheadUpdates, GradientsThatAreNotFiniteLeaveNothing) {
  next_gradients();
  both_step(step());
  const FlatTensor good = early_.flat().gradients;
  early_.flat().gradients = FlatTensor(
      Tensor::zeros(early_.ctx().device, good.dtype(), {good.elements()}, MemoryTag::kOther));
  // All ones are a NaN in every type.
  std::memset(early_.flat().gradients.memory().raw(), 0xff,
              static_cast<size_t>(early_.flat().gradients.memory().bytes()));
  expect(step(), {0, 1, 2, 3, 4, 5});
  wait_for(1);
  ahead_->undo_ahead();
  early_.flat().gradients = good;
  compare("overflow");
  next_gradients();
  both_step(step());
  compare("the step after it");
}

// An update that fails half way is made by the step, which says why if it fails too.
TEST_P(AheadUpdates, ThatFailAreLeftToTheStep) {
  const FlatTensor good = early_.flat().gradients;
  for (int i = 0; i < 5; ++i) {
    next_gradients();
    early_.flat().gradients = FlatTensor(
        Tensor::zeros(early_.ctx().device, DType::kInt8, {good.elements()}, MemoryTag::kOther));
    expect(step(), {0, 1, 2, 3, 4, 5});
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // for it to begin
    early_.flat().gradients = good;
    both_step(step());
    compare("the step");
  }
}

TEST(AheadOf, OptimizersByTensorRefuse) {
  World world(places(), {});
  const auto lamb = world.optimizer(parse_optimizer(R"({"type": "Lamb", "params": {"lr": 1e-2}})"));
  EXPECT_EQ(code_of([&] { lamb->go_ahead(world.flat(), 1); }), Code::kInternal);
}

// Whatever a step prescribes makes another update of it, each by itself.
TEST(AheadOf, StepsThatDifferInOneThingMakeOtherUpdates) {
  UpdateStep one;
  one.rates = {0.1, 0.2};
  one.beta1 = 0.9;
  one.beta2 = 0.99;
  one.weight_decay = 0.01;
  one.updates = 7;
  EXPECT_TRUE(same_update(one, one));
  const std::function<void(UpdateStep&)> changes[] = {
      [](UpdateStep& step) { step.rates[1] = 0.3; },
      [](UpdateStep& step) { step.beta1 = 0.8; },
      [](UpdateStep& step) { step.beta1.reset(); },
      [](UpdateStep& step) { step.beta2 = 0.9; },
      [](UpdateStep& step) { step.weight_decay = 0; },
      [](UpdateStep& step) { step.grad_scale = 0.5F; },
      [](UpdateStep& step) { step.updates = 8; },
      [](UpdateStep& step) {
        step.gate = Tensor::zeros(make_cpu_device(), DType::kFloat32, {1}, MemoryTag::kOther);
      }};
  for (size_t i = 0; i < std::size(changes); ++i) {
    UpdateStep other = one;
    changes[i](other);
    EXPECT_FALSE(same_update(one, other)) << "change " << i;
    EXPECT_FALSE(same_update(other, one)) << "change " << i;
  }
  UpdateStep both = one;  // what a gate says is not known before
  changes[7](both);
  EXPECT_FALSE(same_update(both, both));
  // What only tells about the gradients changes no update of Adam.
  UpdateStep told = one;
  told.norm = 3;
  EXPECT_TRUE(same_update(one, told));
}

}  // namespace
}  // namespace ds::optim::testing
