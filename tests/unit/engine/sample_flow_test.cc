// How samples flow into steps: batches that grow (rampup_batch_size), and the ways through a data
// set (dataloader_type), with what a resume makes of them.
#include <gmock/gmock.h>

#include "data/sampler.h"
#include "engine_world.h"

namespace ds {
namespace {

using namespace engine_test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The index of a sample is its first token.
class Numbered : public Dataset {
 public:
  explicit Numbered(int64_t count) : count_(count) {}
  int64_t sample_count() const override { return count_; }
  int64_t sequence_length() const override { return 4; }
  void sample(int64_t index, const SampleView& out) const override {
    read.push_back(index);
    std::fill(out.ids.begin(), out.ids.end(), static_cast<int32_t>(index % 61));
    std::fill(out.labels.begin(), out.labels.end(), static_cast<int32_t>((index + 1) % 61));
  }
  mutable std::vector<int64_t> read;

 private:
  int64_t count_;
};

// Two micro batches of 2 make the full batch of 8 from the 24th sample on: 2, 4 and 6 before.
Json ramped() {
  return with(base_config(), {{"train_micro_batch_size_per_gpu", 2},
                              {"gradient_accumulation_steps", 4},
                              {"rampup_batch_size", {2, 2, 24}}});
}

TEST(BatchRampUp, StepsHaveTheSizesOfTheFormula) {
  const auto engine = make_engine(ramped());
  std::vector<int64_t> samples;
  for (int i = 0; i < 11; ++i) samples.push_back(engine->train_batch().progress.samples);
  EXPECT_THAT(samples, ElementsAre(2, 4, 6, 8, 12, 16, 22, 28, 36, 44, 52));
}

// Gradients are divided by the step's own number of micro batches.
TEST(BatchRampUp, AStepIsThatOfItsSize) {
  const auto ramp = make_engine(ramped());
  const auto small = make_engine(with(
      base_config(), {{"train_micro_batch_size_per_gpu", 2}, {"gradient_accumulation_steps", 1}}));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(ramp->train_batch().loss, small->train_batch().loss);
  }
  EXPECT_TRUE(same_bits(weights(*ramp), weights(*small)));
}

void ramped_micro_batch(Engine& engine, int64_t first) {
  std::vector<int64_t> ids(8);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = (first + static_cast<int64_t>(i * i)) % 61;
  const Tensor rows = ids_tensor(ids, 2);
  engine.backward(engine.forward({rows, rows, {}, {}, {}}));
  engine.step();
}

// Saved after each micro batch in turn, that is at boundaries and inside of steps of every size.
TEST(BatchRampUp, ResumesInsideAnyStep) {
  const Folder folder;
  constexpr int64_t kMicroBatches = 14;
  const auto whole = make_engine(ramped());
  for (int64_t i = 0; i < kMicroBatches; ++i) {
    whole->save(folder.path(), "after" + std::to_string(i));
    ramped_micro_batch(*whole, i);
  }
  EXPECT_EQ(whole->progress().steps, 8);  // 2, 2, 2, 2, 4, 4, 6, 6 samples
  for (int64_t stop = 0; stop < kMicroBatches; ++stop) {
    const auto resumed = make_engine(ramped());
    resumed->load(folder.path(), "after" + std::to_string(stop));
    for (int64_t i = stop; i < kMicroBatches; ++i) ramped_micro_batch(*resumed, i);
    EXPECT_EQ(resumed->progress().steps, 8) << stop;
    EXPECT_TRUE(same_bits(weights(*resumed), weights(*whole))) << stop;
  }
}

TEST(BatchRampUp, WhatCannotBeIsRefused) {
  const auto refused = [](const Json& change) {
    return error_of(Code::kConfig, [&] { make_engine(with(ramped(), change)); });
  };
  EXPECT_THAT(refused({{"rampup_batch_size", {10, 2, 24}}}), HasSubstr("starts with 10 samples"));
  EXPECT_THAT(refused({{"rampup_batch_size", {2, 4, 24}}}), HasSubstr("do not lead from 2"));
  EXPECT_THAT(refused({{"rampup_batch_size", {5, 1, 24}}}), HasSubstr("no multiple"));
  EXPECT_THAT(refused({{"rampup_batch_size", {2, 2}}}), HasSubstr("rampup_batch_size"));
  EXPECT_THAT(refused({{"rampup_batch_size", {2, 0, 24}}}), HasSubstr("rampup_batch_size"));
  EXPECT_THAT(refused({{"managed_gradient_accumulation", false}}),
              HasSubstr("managed_gradient_accumulation"));
  const auto engine = make_engine(ramped());
  EXPECT_THAT(error_of(Code::kState, [&] { engine->set_boundary(true); }),
              HasSubstr("rampup_batch_size"));
}

Json read_as(const char* type) {
  return with(base_config(), {{"train_micro_batch_size_per_gpu", 2},
                              {"gradient_accumulation_steps", 2},
                              {"dataloader_type", type}});
}

std::vector<int64_t> read_by(const Json& config, int64_t count, int steps) {
  const auto engine = make_engine(config);
  const auto data = std::make_shared<Numbered>(count);
  engine->set_dataset(data);
  for (int i = 0; i < steps; ++i) engine->train_batch();
  return data->read;
}

TEST(DataloaderType, SingleReadsInOrderAndEnds) {
  EXPECT_THAT(read_by(read_as("single"), 11, 2), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  const auto engine = make_engine(read_as("single"));
  engine->set_dataset(std::make_shared<Numbered>(11));
  engine->train_batch();
  engine->train_batch();
  EXPECT_THAT(error_of(Code::kState, [&] { engine->train_batch(); }),
              HasSubstr("8 of the data set's 11 samples are consumed"));
  EXPECT_EQ(engine->progress().steps, 2);
}

TEST(DataloaderType, CyclicReadsAPermutationInEveryEpoch) {
  std::vector<int64_t> expected;
  for (int epoch = 0; epoch < 2; ++epoch) {
    Sampler sampler({SamplerKind::kCyclic, 9, 2});
    for (int64_t at = 0; at < 8; at += 2) {
      expected.resize(expected.size() + 2);
      sampler.take(epoch * 8 + at, std::span(expected).last(2));
    }
  }
  EXPECT_EQ(read_by(read_as("cyclic"), 9, 4), expected);
}

// After k batches a loaded run reads batch k + 1, whatever the way.
TEST(DataloaderType, AResumeReadsOnWhereTheRunStopped) {
  for (const char* const type : {"passes", "single", "cyclic"}) {
    const Folder folder;
    const int64_t count = std::string(type) == "single" ? 24 : 9;
    const std::vector<int64_t> whole = read_by(read_as(type), count, 6);
    const auto first = make_engine(read_as(type));
    first->set_dataset(std::make_shared<Numbered>(count));
    for (int i = 0; i < 3; ++i) first->train_batch();
    first->save(folder.path(), "");
    const auto second = make_engine(read_as(type));
    second->load(folder.path(), "");
    const auto data = std::make_shared<Numbered>(count);
    second->set_dataset(data);
    data->read.clear();  // setting it looks at samples
    for (int i = 0; i < 3; ++i) second->train_batch();
    EXPECT_EQ(data->read, std::vector<int64_t>(whole.begin() + 12, whole.end())) << type;
  }
}

}  // namespace
}  // namespace ds
