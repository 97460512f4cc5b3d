// Weights that nobody trains: when they come to exist, where they lie, and how they pass to another
// holder.
#include "nn/held_weights.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tensor/transfer.h"

namespace ds::nn {
namespace {

ParameterSet three_parameters() {
  ParameterSet set;
  set.add({.name = "table", .shape = {5, 7}, .trainable = false});
  set.add({.name = "bias", .shape = {7}});
  set.add({.name = "matrix", .shape = {7, 7}, .decays = true});
  return set;
}

float number(ParamId id, int64_t i) { return static_cast<float>(100 * id + i); }

// Numbers that say where they belong, and which parameters were asked for.
class NumberLoader : public WeightLoader {
 public:
  void fill(const OpContext&, ParamId id, const Parameter&, int64_t begin,
            Tensor& out) const override {
    asked.insert(id);
    for (int64_t i = 0; i < out.elements(); ++i) out.data<float>()[i] = number(id, begin + i);
  }
  uint64_t fingerprint() const override { return 7; }

  mutable std::set<ParamId> asked;
};

class Held : public ::testing::Test {
 protected:
  void expect_numbers(const Tensor& value, ParamId id) const {
    ASSERT_EQ(value.shape(), parameters_[id].shape);
    for (int64_t i = 0; i < value.elements(); ++i) {
      ASSERT_EQ(value.data<float>()[i], number(id, i)) << parameters_[id].name << " " << i;
    }
  }
  int64_t parameter_bytes() const { return device_->account().now(MemoryTag::kParameters); }

  ThreadPool pool_;
  const std::shared_ptr<Device> device_ = make_cpu_device();
  const OpContext ctx_{device_, &pool_};
  const ParameterSet parameters_ = three_parameters();
  const std::shared_ptr<NumberLoader> loader_ = std::make_shared<NumberLoader>();
};

TEST_F(Held, TrainableOnesComeFirstAndThoseThatDecayBeforeOthers) {
  const FlatOrder order(parameters_);
  EXPECT_EQ(std::vector<ParamId>(order.order().begin(), order.order().end()),
            (std::vector<ParamId>{2, 1, 0}));
  EXPECT_EQ(order.range(2).begin, 0);
  EXPECT_EQ(order.range(2).end, 49);
  EXPECT_EQ(order.range(1).begin, 64);  // the next multiple of 32
  EXPECT_EQ(order.range(0).begin, 96);
  EXPECT_EQ(order.range(0).elements(), 35);
  EXPECT_EQ(order.elements(), 160);
}

TEST_F(Held, OneParameterIsReadWithoutMakingAll) {
  HeldWeights weights(parameters_, device_, loader_);
  expect_numbers(weights.read(ctx_, 1), 1);
  EXPECT_EQ(loader_->asked, (std::set<ParamId>{1}));
  EXPECT_EQ(parameter_bytes(), 0);
  weights.make(ctx_);
  EXPECT_EQ(weights.loader(), nullptr);
  EXPECT_EQ(parameter_bytes(), 160 * 4);
  for (ParamId id = 0; id < 3; ++id) {
    expect_numbers(weights.reader().acquire(id), id);
    // From here on reading shows the master itself.
    EXPECT_EQ(weights.read(ctx_, id).raw(), weights.reader().acquire(id).raw());
  }
}

TEST_F(Held, WithoutALoaderTheyAreZeros) {
  const HeldWeights weights(parameters_, device_);
  const Tensor& all = weights.all();
  ASSERT_EQ(all.elements(), 160);
  for (int64_t i = 0; i < all.elements(); ++i) ASSERT_EQ(all.data<float>()[i], 0);
}

TEST_F(Held, WhatIsSetIsReadAndReachesBorrowedMemory) {
  HeldWeights weights(parameters_, device_, loader_);
  const Tensor lent = Tensor::zeros(device_, DType::kBFloat16, {7}, MemoryTag::kOther);
  weights.borrowed().add(1, lent);
  const Tensor value = Tensor::zeros(device_, DType::kFloat32, {7}, MemoryTag::kOther);
  for (int64_t i = 0; i < 7; ++i) value.data<float>()[i] = static_cast<float>(i - 3);
  weights.write(ctx_, 1, value);
  for (int64_t i = 0; i < 7; ++i) {
    EXPECT_EQ(weights.view(1).data<float>()[i], static_cast<float>(i - 3));
    EXPECT_EQ(to_float(lent.data<bfloat16>()[i]), static_cast<float>(i - 3));
  }
  expect_numbers(weights.view(2), 2);
}

TEST_F(Held, WhoTakesThemHasTheSameMemoryAndNothingStays) {
  HeldWeights first(parameters_, device_, loader_);
  first.borrowed().add(1, Tensor::zeros(device_, DType::kFloat32, {7}, MemoryTag::kOther));
  first.make(ctx_);
  const void* const bytes = first.all().raw();
  HeldWeights second(parameters_, device_, first.take(ctx_));
  EXPECT_EQ(second.all().raw(), bytes);
  EXPECT_TRUE(second.borrowed().has(1));
  EXPECT_FALSE(first.all());
  EXPECT_TRUE(first.borrowed().empty());
  EXPECT_EQ(parameter_bytes(), 160 * 4);
}

TEST_F(Held, LostOnesSaySoWhereverTheyAreUsed) {
  WholeWeights whole(parameters_);
  whole.lost = true;
  HeldWeights weights(parameters_, device_, std::move(whole));
  EXPECT_FALSE(weights.whole());
  const auto refuses = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kState);
      EXPECT_NE(std::string(error.what()).find("spread over ranks"), std::string::npos);
      return true;
    }
    return false;
  };
  EXPECT_TRUE(refuses([&] { weights.make(ctx_); }));
  EXPECT_TRUE(refuses([&] { weights.reader(); }));
  EXPECT_TRUE(refuses([&] { weights.read(ctx_, 0); }));
  EXPECT_TRUE(refuses([&] { weights.acquire(0); }));
  EXPECT_TRUE(refuses([&] {
    weights.write(ctx_, 1, Tensor::zeros(device_, DType::kFloat32, {7}, MemoryTag::kOther));
  }));
}

}  // namespace
}  // namespace ds::nn
