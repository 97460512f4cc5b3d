// Work that is recorded and launched again: on the device, and as the micro batches of training,
// which have the same bits as without.
#include <gmock/gmock.h>

#include "cuda/model_world.h"
#include "cuda/offload_world.h"
#include "cuda/side.h"
#include "data/dataset.h"
#include "ops/elementwise.h"
#include "unit/base/expect_error.h"

namespace ds {
namespace {

using namespace gpu_test;  // NOLINT: what these tests are about
using ::testing::HasSubstr;

class GpuGraph : public GpuModel {
 protected:
  void SetUp() override {
    GpuModel::SetUp();
    if (!IsSkipped()) gpu_ = std::make_unique<testing::Side>(make_cuda_device(0));
  }
  CudaDevice& device() const { return static_cast<CudaDevice&>(*gpu_->device); }
  Tensor numbers(int64_t n, float value) const {
    return gpu_->tensor(DType::kFloat32, std::vector<float>(static_cast<size_t>(n), value));
  }

  std::unique_ptr<testing::Side> gpu_;
};

TEST_F(GpuGraph, LaunchesRepeatWhatWasRecorded) {
  Tensor x = numbers(1000, 1);
  float factor = 2;
  const auto graph = device().record(device().make_graph_memory(), [&] {
    Tensor y = gpu_->ctx.workspace(DType::kFloat32, x.shape());
    ops::scale(gpu_->ctx, x, factor, y);
    ops::add(gpu_->ctx, x, y, x);
  });
  factor = 100;  // arguments are those of the recording
  EXPECT_EQ(graph->nodes(), 2);
  EXPECT_EQ(gpu_->host<float>(x)[0], 1) << "recorded, not run";
  for (int i = 0; i < 3; ++i) graph->launch();
  EXPECT_EQ(gpu_->host<float>(x), std::vector<float>(1000, 27));
  Tensor other = numbers(1000, 5);
  device().copy(x.raw(), other.raw(), x.bytes(), device().default_stream());
  graph->launch();
  EXPECT_EQ(gpu_->host<float>(x)[999], 15);
}

// What a recording allocated and freed serves nobody but recordings into the same memory.
TEST_F(GpuGraph, MemoryBelongsToTheRecording) {
  const Tensor x = numbers(3000, 1);
  const void* scratch = nullptr;
  const auto body = [&] {
    Tensor y = gpu_->ctx.workspace(DType::kFloat32, x.shape());
    scratch = y.raw();
    ops::fill(gpu_->ctx, 7, y);
  };
  body();
  const void* const cached = scratch;
  auto memory = device().make_graph_memory();
  auto graph = device().record(memory, body);
  EXPECT_EQ(scratch, cached) << "a freed block moves over";
  EXPECT_GE(memory->bytes(), x.bytes());
  {
    std::vector<Tensor> held;
    for (int i = 0; i < 4; ++i) {
      held.push_back(gpu_->ctx.workspace(DType::kFloat32, x.shape()));
      EXPECT_NE(held.back().raw(), scratch);
      ops::fill(gpu_->ctx, 3, held.back());
    }
    graph->launch();
    for (const Tensor& one : held) EXPECT_EQ(gpu_->host<float>(one)[0], 3);
  }
  const int64_t before = memory->bytes();
  const auto second = device().record(memory, body);
  EXPECT_EQ(scratch, cached) << "recordings share their memory";
  EXPECT_EQ(memory->bytes(), before);
  const auto elsewhere = device().record(device().make_graph_memory(), body);
  EXPECT_NE(scratch, cached);
  Tensor kept;  // outlives the recording: an ordinary tensor from then on
  {
    device().record(memory, [&] { kept = gpu_->ctx.workspace(DType::kFloat32, {50}); });
  }
  memory.reset();
  EXPECT_EQ(gpu_->host<float>(x)[0], 1);
  graph.reset();
}

TEST_F(GpuGraph, WhatCannotBeRecorded) {
  const Tensor x = numbers(64, 1);
  Tensor y = numbers(64, 2);
  const auto memory = device().make_graph_memory();
  const auto refuse = [&](Code code, const std::vector<std::string>& parts, const auto& body) {
    testing::expect_error(code, parts, [&] { device().record(memory, body); });
    // The stream is as it was.
    ops::add(gpu_->ctx, x, x, y);
    EXPECT_EQ(gpu_->host<float>(y)[5], 2);
  };
  refuse(Code::kDevice, {"waiting for a stream"}, [&] { device().default_stream().synchronize(); });
  refuse(Code::kUnsupported, {"cannot be recorded"}, [&] {
    const float number = 1;
    copy_from_host(&number, x.slice(0, 0, 1));
  });
  refuse(Code::kInvalidArgument, {"the body's own"},
         [] { fail(Code::kInvalidArgument, "the body's own"); });
  refuse(Code::kState, {"recorded on", "already"},
         [&] { device().record(device().make_graph_memory(), [] {}); });
  testing::expect_error(Code::kInvalidArgument, {"memory of another device"},
                        [&] { device().record(make_cuda_device(0)->make_graph_memory(), [] {}); });
}

// ---- training ----

// Samples of one length with whatever inputs a batch can have.
class RandomData : public Dataset {
 public:
  RandomData(int64_t length, DatasetFields fields) : length_(length), fields_(fields) {}
  int64_t sample_count() const override { return 50; }
  int64_t sequence_length() const override { return length_; }
  DatasetFields fields() const override { return fields_; }
  void sample(int64_t index, const SampleView& to) const override {
    std::mt19937 random(static_cast<uint32_t>(index));
    const auto draw = [&](int most) {
      return std::uniform_int_distribution<int32_t>(0, most - 1)(random);
    };
    int32_t segment = 0;
    const auto padding = static_cast<size_t>(draw(4));  // so many labels count
    for (size_t i = 0; i < to.ids.size(); ++i) {
      to.ids[i] = draw(61);
      to.labels[i] = i + padding < to.ids.size() ? draw(61) : -100;
      segment += draw(5) == 0 ? 1 : 0;
      if (!to.segments.empty()) to.segments[i] = segment;
      if (!to.mask.empty()) to.mask[i] = i < padding ? 0 : 1;
    }
  }

 private:
  int64_t length_;
  DatasetFields fields_;
};

// A short micro batch, recorded or not.
Json recorded(const Json& config, bool graphs) {
  return with(config, {{"graph_harvesting", graphs}, {"train_micro_batch_size_per_gpu", 2}});
}

// The same calls on an engine that records and on one that does not.
class Pair {
 public:
  Pair(const Json& config, const Json& model)
      : with_(make_engine_on(true, recorded(config, true), model)),
        without_(make_engine_on(true, recorded(config, false), model)) {}

  void use(const DatasetPtr& data) {
    with_->set_dataset(data);
    without_->set_dataset(data);
  }
  StepReport step() {
    const StepReport actual = with_->train_batch(), expected = without_->train_batch();
    EXPECT_EQ(actual.loss, expected.loss);
    EXPECT_EQ(actual.grad_norm, expected.grad_norm);
    EXPECT_EQ(actual.loss_scale, expected.loss_scale);
    EXPECT_EQ(actual.applied, expected.applied);
    EXPECT_EQ(actual.tokens, expected.tokens);
    EXPECT_EQ(actual.progress.samples, expected.progress.samples);
    return actual;
  }
  void evaluate(const Dataset& data) {
    EXPECT_EQ(with_->evaluate(data, 2), without_->evaluate(data, 2));
  }
  // A micro batch of the caller's own.
  void forward_and_backward(int64_t length) {
    std::vector<int64_t> ids(static_cast<size_t>(2 * length));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 7 % 61);
    const Tensor batch = ids_tensor(ids, 2);
    for (Engine* const engine : {with_.get(), without_.get()}) {
      engine->backward(engine->forward({batch, batch, {}, {}, {}}));
      engine->step();
    }
  }
  void save_and_load() {
    const Folder folder;
    with_->save(folder.path("with"), "one");
    without_->save(folder.path("without"), "one");
    step();
    with_->load(folder.path("without"), "one");
    without_->load(folder.path("with"), "one");
    expect_alike();
  }
  void expect_alike() {
    EXPECT_TRUE(same_bits(weights_of(*with_), weights_of(*without_)));
    EXPECT_TRUE(same_bits(states_of(*with_), states_of(*without_)));
  }
  Engine& recording() { return *with_; }

 private:
  std::unique_ptr<Engine> with_, without_;
};

struct Variant {
  const char* name;
  Json model;
  Json config;
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

std::vector<Variant> variants() {
  const Json bf16 = {{"bf16", {{"enabled", true}}}};
  Json scaled = llama_config();
  scaled["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  return {{"Gpt2", model_config(0.1), Json::object()},
          {"Checkpointed", model_config(0.1), {{"activation_checkpointing", {{"enabled", true}}}}},
          {"Llama", llama_config(), {{"gradient_accumulation_steps", 1}}},
          {"DynamicRotary", scaled, Json::object()},
          {"Bf16Sums", model_config(0.1),
           with(bf16, {{"data_types", {{"grad_accum_dtype", "bf16"}}},
                       {"gradient_accumulation_steps", 3}})},
          {"EveryGradient",
           model_config(0),
           {{"zero_optimization", {{"ignore_unused_parameters", false}}}}},
          {"Lamb", llama_config(), {{"optimizer", {{"type", "Lamb"}}}}},
          {"Offloaded", model_config(0.1), offloaded(Json::object())},
          {"OffloadedPageable", model_config(0.1), offloaded(bf16, false)},
          {"OffloadedSplit", llama_config(),
           offloaded({{"bf16", {{"enabled", true}, {"split_master", true}}},
                      {"gradient_accumulation_steps", 3}})}};
}

class GpuRecordedTraining : public GpuModel, public ::testing::WithParamInterface<Variant> {};

TEST_P(GpuRecordedTraining, HasTheSameBits) {
  Pair pair(with(base_config(), GetParam().config), GetParam().model);
  const auto plain = std::make_shared<RandomData>(10, DatasetFields{});
  const auto packed =
      std::make_shared<RandomData>(7, DatasetFields{.segments = true, .mask = true});
  for (int round = 0; round < 2; ++round) {
    pair.use(plain);
    for (int i = 0; i < 3 - round; ++i) pair.step();
    pair.evaluate(*packed);
    pair.use(packed);
    for (int i = 0; i < 3 - round; ++i) pair.step();
    pair.evaluate(RandomData(24, {}));
    pair.expect_alike();
  }
  pair.save_and_load();
  pair.step();
  pair.expect_alike();
}

INSTANTIATE_TEST_SUITE_P(Models, GpuRecordedTraining, ::testing::ValuesIn(variants()),
                         [](const auto& test) { return test.param.name; });

// The scale falls from one that overflows, and rises again.
TEST_F(GpuGraph, LossScalesChange) {
  Pair pair(with(base_config(), {{"fp16",
                                  {{"enabled", true},
                                   {"initial_scale_power", 24},
                                   {"hysteresis", 1},
                                   {"loss_scale_window", 3}}}}),
            model_config(0.1));
  pair.use(std::make_shared<RandomData>(5, DatasetFields{}));
  std::vector<double> scales;
  int skipped = 0;
  for (int i = 0; i < 16; ++i) {
    const StepReport report = pair.step();
    scales.push_back(report.loss_scale);
    skipped += report.applied ? 0 : 1;
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 16);
  EXPECT_FALSE(std::is_sorted(scales.rbegin(), scales.rend())) << "it never rose";
  pair.expect_alike();
}

// What callers do between steps, and within one: gradients that are there already are added to.
TEST_F(GpuGraph, CallersMayStepBetween) {
  Pair pair(base_config(), model_config(0.1));
  for (int i = 0; i < 3; ++i) pair.step();
  pair.forward_and_backward(9);  // the step is open: one micro batch of two
  pair.step();
  pair.forward_and_backward(16);
  pair.forward_and_backward(5);
  pair.step();
  pair.expect_alike();
}

// More kinds than are kept.
TEST_F(GpuGraph, KindsAreBounded) {
  Pair pair(with(base_config(), {{"gradient_accumulation_steps", 1}}),
            with(model_config(0), {{"n_layer", 1}}));
  int64_t most = 0;
  for (int round = 0; round < 2; ++round) {
    for (int64_t length = 2; length < 20; ++length) {
      pair.use(std::make_shared<RandomData>(length, DatasetFields{}));
      for (int i = 0; i < 2; ++i) pair.step();
    }
    const int64_t held = pair.recording().model()->device()->reserved_bytes();
    if (round == 0) most = held;
    EXPECT_LE(held, most * 5 / 4);
  }
  pair.expect_alike();
}

}  // namespace
}  // namespace ds
