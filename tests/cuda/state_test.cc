// A model's weights, gradients and optimizer state on a GPU: moved, read, set, saved and updated
// without a forward pass, beside the same on the CPU.
#include <gmock/gmock.h>

#include <limits>

#include "comm/factory.h"
#include "cuda/offload_world.h"
#include "device/open_device.h"
#include "fresh_seed.h"
#include "models/adapters.h"
#include "models/lora.h"
#include "models/saved_model.h"
#include "models/weights.h"

namespace ds {
namespace {

using namespace gpu_test;  // NOLINT: what these tests are about
using ::testing::HasSubstr;

using GpuState = GpuModel;

Json plain_config() { return with(base_config(), {{"gradient_accumulation_steps", 1}}); }

TEST_F(GpuState, MovingKeepsEveryBit) {
  const auto model = models::Model::create(model_config(), 5);
  const std::vector<float> before = weights_of(*model);
  // Once before any weight exists, and once with weights that somebody set.
  const auto fresh = models::Model::create(model_config(), 5);
  fresh->set_device(make_cuda_device(0));
  EXPECT_EQ(device_name(*fresh->device()), "cuda:0");
  EXPECT_TRUE(same_bits(weights_of(*fresh), before));

  std::mt19937_64 random(ds::fresh_seed());
  const Tensor value = random_tensor(random, model->parameters()[0].shape);
  const std::string name = model->parameters()[0].name;
  model->set(name, value);
  model->set_device(make_cuda_device(0));
  EXPECT_TRUE(same_bits(flat(model->get(name)), flat(value)));
  const Tensor other = random_tensor(random, value.shape());
  model->set(name, other);
  EXPECT_TRUE(same_bits(flat(model->get(name)), flat(other)));
  model->set_device(make_cpu_device());
  EXPECT_EQ(device_name(*model->device()), "cpu");
  EXPECT_EQ(model->device(), model->host());
  EXPECT_TRUE(same_bits(flat(model->get(name)), flat(other)));
  fresh->set(name, other);
  EXPECT_TRUE(same_bits(weights_of(*model), weights_of(*fresh)));
}

TEST_F(GpuState, OneGpuToAnother) {
  if (list_cuda_devices().size() < 2) GTEST_SKIP() << "needs two GPUs";
  const auto model = make_model(model_config(), true);
  const std::vector<float> before = weights_of(*model);
  model->set_device(make_cuda_device(1));
  EXPECT_EQ(device_name(*model->device()), "cuda:1");
  EXPECT_TRUE(same_bits(weights_of(*model), before));
}

TEST_F(GpuState, FilesAreThoseOfTheCpu) {
  const Folder folder;
  const auto cpu = make_model(llama_config(), false), gpu = make_model(llama_config(), true);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    models::export_model(*cpu, folder.path("cpu"), dtype);
    models::export_model(*gpu, folder.path("gpu"), dtype);
    EXPECT_EQ(read_text_file(folder.path("cpu/model.safetensors"), 1 << 20),
              read_text_file(folder.path("gpu/model.safetensors"), 1 << 20));
  }
  models::export_model(*gpu, folder.path("gpu"), DType::kFloat32);
  const auto opened = models::open_model(folder.path("gpu"));
  opened->set_device(make_cuda_device(0));
  EXPECT_TRUE(same_bits(weights_of(*opened), weights_of(*cpu)));

  models::save_model(*gpu, folder.path("saved"), "weights", "a test");
  const auto saved = models::open_model(folder.path("saved"));
  saved->set_device(make_cuda_device(0));
  saved->reader();
  EXPECT_TRUE(same_bits(weights_of(*saved), weights_of(*cpu)));
}

// GPT-2's files hold transposed matrices.
TEST_F(GpuState, TransposedMatricesOfFiles) {
  const Folder folder;
  const auto cpu = make_model(model_config(), false);
  models::export_model(*cpu, folder.path("cpu"), DType::kFloat16);
  const auto on_cpu = models::open_model(folder.path("cpu"));
  const auto on_gpu = models::open_model(folder.path("cpu"));
  on_gpu->set_device(make_cuda_device(0));
  on_gpu->reader();
  EXPECT_TRUE(same_bits(weights_of(*on_gpu), weights_of(*on_cpu)));
}

TEST_F(GpuState, AdaptersAreAddedAndMerged) {
  std::mt19937_64 random(ds::fresh_seed());
  models::LoraOptions options;
  options.r = 3;
  options.alpha = 5;
  options.target_modules = {"all-linear"};
  const auto cpu = make_model(llama_config(), false), gpu = make_model(llama_config(), true);
  gpu->reader();  // weights exist: the adapters are made beside them
  for (const auto& model : {cpu, gpu}) models::add_lora(*model, options);
  EXPECT_TRUE(same_bits(weights_of(*gpu), weights_of(*cpu)));
  const std::string name = "layers.1.self_attn.q_proj.lora_B.weight";
  const Tensor b = random_tensor(random, cpu->parameters()[cpu->parameters().find(name)].shape);
  for (const auto& model : {cpu, gpu}) {
    model->set(name, b);
    models::merge_lora(*model);
  }
  EXPECT_LT(largest_difference(weights_of(*gpu), weights_of(*cpu)), 1e-5);
}

class GpuUpdates : public GpuModel, public ::testing::WithParamInterface<Json> {};

TEST_P(GpuUpdates, FollowTheCpu) {
  const Json config = with(plain_config(), GetParam());
  const auto cpu = make_engine_on(false, config), gpu = make_engine_on(true, config);
  const auto again = make_engine_on(true, config);
  const uint64_t seed = ds::fresh_seed();
  for (uint64_t i = 0; i < 3; ++i) {
    const StepReport expected = step_with_random_gradients(*cpu, seed + i);
    const StepReport actual = step_with_random_gradients(*gpu, seed + i);
    step_with_random_gradients(*again, seed + i);
    EXPECT_TRUE(actual.applied);
    EXPECT_EQ(actual.grad_norm, expected.grad_norm) << "sums are exact";
  }
  // A rounding of the update, and of bf16 weights where they are all there is.
  EXPECT_LT(largest_difference(weights_of(*gpu), weights_of(*cpu)), 1e-5) << "seed " << seed;
  EXPECT_TRUE(same_bits(weights_of(*gpu), weights_of(*again)));
  EXPECT_TRUE(same_bits(states_of(*gpu), states_of(*again)));
}

TEST_P(GpuUpdates, CheckpointsGoAcross) {
  const Folder folder;
  const Json config = with(plain_config(), GetParam());
  const auto straight = make_engine_on(true, config);
  const uint64_t seed = ds::fresh_seed();
  for (uint64_t i = 0; i < 2; ++i) step_with_random_gradients(*straight, seed + i);
  straight->save(folder.path("gpu"), "two");

  const auto cpu = make_engine_on(false, config);
  cpu->load(folder.path("gpu"), "two");
  EXPECT_TRUE(same_bits(weights_of(*cpu), weights_of(*straight)));
  EXPECT_TRUE(same_bits(states_of(*cpu), states_of(*straight)));
  cpu->save(folder.path("cpu"), "two");
  const auto resumed = make_engine_on(true, config);
  step_with_random_gradients(*resumed, seed + 7);  // whatever it did before must not matter
  resumed->load(folder.path("cpu"), "two");
  EXPECT_TRUE(same_bits(weights_of(*resumed), weights_of(*straight)));
  EXPECT_TRUE(same_bits(states_of(*resumed), states_of(*straight)));
  step_with_random_gradients(*straight, seed + 2);
  step_with_random_gradients(*resumed, seed + 2);
  EXPECT_TRUE(same_bits(weights_of(*resumed), weights_of(*straight)));
}

INSTANTIATE_TEST_SUITE_P(
    Configs, GpuUpdates,
    ::testing::Values(Json::object(),
                      Json{{"bf16", {{"enabled", true}}}, {"gradient_clipping", 0.5}},
                      Json{{"bf16", {{"enabled", true}, {"split_master", true}}}},
                      Json{{"optimizer", {{"state_dtype", "int8"}}}}));

TEST_F(GpuState, GradientsOfTheCaller) {
  std::mt19937_64 random(ds::fresh_seed());
  const auto engine = make_engine_on(true, with(base_config(), {{"scheduler", nullptr}}));
  const std::string name = "h.0.attn.c_attn.weight";
  const nn::ParameterSet& parameters = engine->model()->parameters();
  const nn::ParamId id = parameters.find(name);
  const Tensor value = random_tensor(random, parameters[id].shape);
  engine->gradients().set(name, value);
  EXPECT_TRUE(same_bits(flat(engine->gradients().get(name)), flat(value)));
  // A strided one is added to it.
  const int64_t rows = value.size(0), columns = value.size(1);
  const Tensor wide = random_tensor(random, {rows, 2 * columns});
  const Tensor part = wide.slice(1, columns, 2 * columns);
  const Tensor* const pointer = &part;
  const int64_t index = id;
  engine->gradients().add({&index, 1}, {&pointer, 1});
  const std::vector<float> sum = flat(engine->gradients().get(name));
  for (int64_t i = 0; i < rows * columns; ++i) {
    EXPECT_EQ(sum[static_cast<size_t>(i)],
              value.data<float>()[i] +
                  wide.data<float>()[i / columns * 2 * columns + columns + i % columns]);
  }
  // The part of this process: all of it.
  EXPECT_TRUE(same_bits(flat(engine->values().local(name, "gradient")), sum));
  engine->discard_gradients();
  const Tensor state = random_tensor(random, value.shape());
  engine->values().set_optimizer_state(name, "exp_avg", state);
  EXPECT_TRUE(same_bits(flat(engine->values().optimizer_state(name, "exp_avg")), flat(state)));
  EXPECT_TRUE(same_bits(flat(engine->values().local(name, "exp_avg")), flat(state)));
  const Tensor part_value = random_tensor(random, {value.elements()});
  engine->values().set_local(name, "parameter", part_value);
  EXPECT_TRUE(same_bits(flat(engine->values().local(name, "parameter")), flat(part_value)));
  EXPECT_TRUE(same_bits(flat(engine->model()->get(name)), flat(part_value)));

  const std::vector<Tensor> gathered = engine->scopes().gather({&index, 1});
  EXPECT_TRUE(same_bits(flat(gathered[0]), flat(part_value)));
  gathered[0].data<float>()[3] = 42;
  engine->scopes().scatter({&index, 1}, 0);
  EXPECT_EQ(engine->model()->get(name).data<float>()[3], 42);
}

TEST_F(GpuState, ABadGradientSkipsTheStepAndIsNamed) {
  const auto engine = make_engine_on(true, plain_config());
  const std::vector<float> before = weights_of(*engine);
  const std::string name = "h.1.mlp.c_fc.weight";
  std::mt19937_64 random(1);
  const nn::ParameterSet& parameters = engine->model()->parameters();
  Tensor bad = random_tensor(random, parameters[parameters.find(name)].shape);
  bad.data<float>()[17] = std::numeric_limits<float>::quiet_NaN();
  engine->gradients().set(name, bad);
  const StepReport report = engine->step();
  EXPECT_FALSE(report.applied);
  EXPECT_EQ(report.first_bad_tensor, name);
  EXPECT_TRUE(same_bits(weights_of(*engine), before));
}

// The GPU sees the bad gradient after the update was queued: nothing of it may remain.
TEST_F(GpuState, ASkippedStepLeavesNoTrace) {
  for (const char* const type : {"AdamW", "Lion", "Adagrad", "SGD", "Lamb"}) {
    for (const char* const states : {"fp32", "int8"}) {
      SCOPED_TRACE(std::string(type) + " " + states);
      const Json config =
          with(plain_config(), {{"optimizer",
                                 {{"type", type},
                                  {"state_dtype", states},
                                  {"params", {{"lr", 1e-2}, {"weight_decay", 0.1}}}}},
                                {"bf16", {{"enabled", true}, {"check_grad_overflow", true}}}});
      const auto engine = make_engine_on(true, config), other = make_engine_on(true, config);
      for (uint64_t seed : {1u, 2u}) {
        const StepReport expected = step_with_random_gradients(*other, seed);
        const StepReport actual = step_with_random_gradients(*engine, seed);
        EXPECT_EQ(actual.grad_norm, expected.grad_norm);
        EXPECT_EQ(actual.lr, expected.lr);
        Tensor bad = Tensor::zeros(make_cpu_device(), DType::kFloat32, {32}, MemoryTag::kOther);
        bad.data<float>()[7] = std::numeric_limits<float>::infinity();
        engine->gradients().set("ln_f.weight", bad);
        EXPECT_FALSE(engine->step().applied);
        EXPECT_EQ(engine->optimizer_steps(), other->optimizer_steps());
        EXPECT_TRUE(same_bits(weights_of(*engine), weights_of(*other)));
        EXPECT_TRUE(same_bits(states_of(*engine), states_of(*other)));
      }
    }
  }
}

// Each rank is told, before it waits for any other.
TEST_F(GpuState, SeveralRanksAreRefused) {
  for (const auto& comm : make_local_group(2)) {
    EXPECT_THAT(error_of(Code::kUnsupported,
                         [&] {
                           const Engine engine(dump_json(base_config()),
                                               make_model(model_config(), true), comm);
                         }),
                HasSubstr("2 ranks are to train it"));
  }
}

TEST_F(GpuState, WhatAGpuDoesNotDo) {
  const auto engine = make_engine_on(true, plain_config());
  EXPECT_THAT(error_of(Code::kUnsupported, [&] { engine->gradients().view("wte.weight"); }),
              HasSubstr("a built-in model on a GPU"));
  EXPECT_THAT(error_of(Code::kState, [&] { engine->model()->set_device(make_cpu_device()); }),
              HasSubstr("engine"));
  nn::ParameterSet set;
  set.add({"own", {4}});
  const auto own = models::Model::from_parameters(std::move(set));
  own->set_device(make_cuda_device(0));
  own->set_device(make_cpu_device());
  own->weights().borrowed().add(0, random_tensor(*std::make_unique<std::mt19937_64>(1), {4}));
  EXPECT_THAT(error_of(Code::kUnsupported, [&] { own->set_device(make_cuda_device(0)); }),
              HasSubstr("lent"));
  EXPECT_THAT(error_of(Code::kInvalidArgument, [&] { open_device("cuda:99"); }),
              HasSubstr("cuda:99 does not exist"));
  const Json report = engine->memory_report();
  EXPECT_THAT(report.at("device").get<std::string>(), HasSubstr("cuda:0"));
  EXPECT_GT(report.at("tags").at("parameters").at("now").get<int64_t>(), 0);
  EXPECT_GT(report.at("host").at("pinned").at("reserved").get<int64_t>(), 0);
}

}  // namespace
}  // namespace ds
