// A model's weights go to the engine that trains it and come back: in the same memory, made or not,
// and whatever fails on the way.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "models/adapters.h"
#include "models/model.h"
#include "models/weight_loaders.h"
#include "zero/train_state.h"

namespace ds::models {
namespace {

Json small_config() {
  return {{"model_type", "gpt2"}, {"vocab_size", 11}, {"n_positions", 4},
          {"n_embd", 8},          {"n_layer", 1},     {"n_head", 2}};
}

std::vector<float> numbers(const Tensor& x) {
  return {x.data<float>(), x.data<float>() + x.elements()};
}

template <class Call>
Code code_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

// Another holder than zero's, which may fail when it begins and when it ends.
class TestHolder : public nn::ModelWeights {
 public:
  static inline bool fails_to_begin = false;
  static inline bool fails_to_end = false;

  TestHolder(const nn::ParameterSet& parameters, std::shared_ptr<Device> device,
             const nn::WholeWeights& whole)
      : held_(parameters, std::move(device), whole) {
    DS_CHECK(!fails_to_begin, Code::kOutOfMemory, "the test wants no state");
  }

  void make(const OpContext& ctx) override { held_.make(ctx); }
  nn::ParameterReader& reader() override { return held_.reader(); }
  void check_not_lost() const override { held_.check_not_lost(); }
  Tensor read(const OpContext& ctx, nn::ParamId id) const override { return held_.read(ctx, id); }
  void write(const OpContext& ctx, nn::ParamId id, const Tensor& value) override {
    held_.write(ctx, id, value);
  }
  bool whole() const override { return true; }
  Tensor view(const OpContext& ctx, nn::ParamId id) override { return held_.view(ctx, id); }
  bool computes_with_master(nn::ParamId) const override { return true; }
  nn::BorrowedMemory& borrowed() override { return held_.borrowed(); }
  bool writes_files() const override { return false; }
  nn::WholeWeights take(const OpContext& ctx) override {
    DS_CHECK(!fails_to_end, Code::kOutOfMemory, "the test wants no end");
    return held_.take(ctx);
  }

 private:
  nn::HeldWeights held_;
};

TEST(Attach, WeightsStayWhereTheyAre) {
  const auto model = Model::create(small_config(), 3);
  model->weights().make(model->context());
  const Tensor before = model->read(model->context(), 0);
  const std::vector<float> values = numbers(before);
  for (int i = 0; i < 2; ++i) {
    const auto state = model->attach_engine<zero::TrainState>();
    EXPECT_EQ(&model->weights(), state.get());
    EXPECT_EQ(state->masters().view(0).raw(), before.raw());
    EXPECT_EQ(&model->reader(), &state->weights());
    EXPECT_EQ(code_of([&] { model->attach_engine<zero::TrainState>(); }), Code::kState);
    EXPECT_EQ(code_of([&] { set_trainable(*model, {"*"}, false); }), Code::kState);
    *before.data<float>() = 5.0f + static_cast<float>(i);
    model->detach_engine(model->context());
    EXPECT_EQ(model->read(model->context(), 0).raw(), before.raw());
    EXPECT_EQ(*model->get("wte.weight").data<float>(), 5.0f + static_cast<float>(i));
  }
  EXPECT_EQ(set_trainable(*model, {"wpe.weight"}, false), 1);
  *model->read(model->context(), 0).data<float>() = values[0];
  EXPECT_EQ(numbers(model->get("wte.weight")), values);
}

TEST(Attach, WeightsThatNobodyNeedsAreNeverMade) {
  const auto model = Model::create(small_config(), 3);
  const MemoryAccount& account = model->device()->account();
  for (int i = 0; i < 2; ++i) {
    const auto state = model->attach_engine<zero::TrainState>();
    EXPECT_NE(state->masters().loader(), nullptr);
    model->detach_engine(model->context());
  }
  EXPECT_EQ(account.peak(MemoryTag::kParameters), 0);
  const auto other = Model::create(small_config(), 3);
  EXPECT_EQ(numbers(model->get("wte.weight")), numbers(other->get("wte.weight")));
}

// Also those whose masters were split.
TEST(Attach, LowerTypesComeBackAsFp32) {
  const auto model = Model::create(small_config(), 3);
  const std::vector<float> values = numbers(model->get("wte.weight"));
  for (const auto form : {zero::MasterForm::kFp32, zero::MasterForm::kSplit}) {
    const auto state = model->attach_engine<zero::TrainState>();
    state->make(model->context());
    state->set_compute_type(model->context(), DType::kBFloat16, form);
    EXPECT_EQ(model->reader().compute_type(), DType::kBFloat16);
    EXPECT_EQ(numbers(model->read(model->context(), 0)), values);
    model->detach_engine(model->context());
    EXPECT_EQ(model->reader().compute_type(), DType::kFloat32);
    EXPECT_EQ(numbers(model->get("wte.weight")), values);
  }
}

TEST(Attach, AnEngineThatCannotBeginLeavesTheModelAsItWas) {
  const auto model = Model::create(small_config(), 3);
  model->weights().make(model->context());
  const Tensor before = model->read(model->context(), 0);
  TestHolder::fails_to_begin = true;
  EXPECT_EQ(code_of([&] { model->attach_engine<TestHolder>(); }), Code::kOutOfMemory);
  TestHolder::fails_to_begin = false;
  EXPECT_EQ(model->read(model->context(), 0).raw(), before.raw());
  EXPECT_EQ(set_trainable(*model, {"wpe.weight"}, false), 1);
}

TEST(Attach, AnEngineThatCannotHandBackLeavesItsState) {
  const auto model = Model::create(small_config(), 3);
  const std::vector<float> values = numbers(model->get("wte.weight"));
  auto state = model->attach_engine<TestHolder>();
  EXPECT_FALSE(model->writes_files());
  TestHolder::fails_to_end = true;
  EXPECT_EQ(code_of([&] { model->detach_engine(model->context()); }), Code::kOutOfMemory);
  state.reset();
  // The model works on with it, and what needs the weights back asks again.
  EXPECT_EQ(numbers(model->get("wte.weight")), values);
  EXPECT_EQ(code_of([&] { set_trainable(*model, {"wpe.weight"}, false); }), Code::kOutOfMemory);
  EXPECT_EQ(code_of([&] { model->attach_engine<TestHolder>(); }), Code::kOutOfMemory);
  TestHolder::fails_to_end = false;
  EXPECT_EQ(set_trainable(*model, {"wpe.weight"}, false), 1);
  EXPECT_TRUE(model->writes_files());
  EXPECT_EQ(numbers(model->get("wte.weight")), values);
}

TEST(Attach, BorrowedMemoryFollowsThroughEngines) {
  nn::ParameterSet set;
  set.add({.name = "w", .shape = {3}});
  const auto model = Model::from_parameters(std::move(set));
  const Tensor lent = Tensor::zeros(model->device(), DType::kFloat32, {3}, MemoryTag::kOther);
  model->weights().borrowed().add(0, lent);
  const auto set_to = [&](float number) {
    const Tensor value = Tensor::zeros(model->host(), DType::kFloat32, {3}, MemoryTag::kOther);
    std::fill_n(value.data<float>(), 3, number);
    model->set("w", value);
  };
  set_to(1);
  EXPECT_EQ(numbers(lent), (std::vector<float>{1, 1, 1}));
  static_cast<void>(model->attach_engine<zero::TrainState>());
  set_to(2);
  EXPECT_EQ(numbers(lent), (std::vector<float>{2, 2, 2}));
  model->detach_engine(model->context());
  set_to(3);
  EXPECT_EQ(numbers(lent), (std::vector<float>{3, 3, 3}));
}

}  // namespace
}  // namespace ds::models
