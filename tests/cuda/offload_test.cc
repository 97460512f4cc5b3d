// Optimizer state in the host's memory beside a GPU that trains: the same as on the CPU, given the
// same gradients, bit for bit, and the same as on the GPU up to the roundings of the update.
#include <gmock/gmock.h>

#include <limits>

#include "attached_state.h"
#include "cuda/offload_world.h"
#include "fresh_seed.h"
#include "full_run.h"
#include "models/adapters.h"
#include "models/lora.h"

namespace ds {
namespace {

using namespace gpu_test;  // NOLINT: what these tests are about
using ::testing::HasSubstr;

using testing::in_sample;
using Offload = GpuModel;

const Json kBf16 = {{"bf16", {{"enabled", true}}}};

Json optimizer(const char* type, const Json& params = {{"lr", 1e-2}}) {
  return {{"optimizer", {{"type", type}, {"params", params}}}};
}

struct Case {
  const char* name;
  Json config;
  bool pinned = true;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

// parameters: of AdamW, weight decay and a schedule are in the base.
std::vector<Case> cases() {
  const Json sgd = {{"lr", 1e-2}, {"momentum", 0.9}};
  return {
      {"Fp32", Json::object()},
      {"Fp32Pageable", Json::object(), false},
      {"Bf16", with(kBf16, {{"gradient_clipping", 0.5}})},
      {"Bf16Pageable", kBf16, false},
      {"Bf16GradientsInBf16", with(kBf16, {{"data_types", {{"grad_accum_dtype", "bf16"}}}})},
      {"SplitMasters", Json{{"bf16", {{"enabled", true}, {"split_master", true}}}}},
      {"SplitMastersPageable", Json{{"bf16", {{"enabled", true}, {"split_master", true}}}}, false},
      {"Fp16", Json{{"fp16", {{"enabled", true}, {"initial_scale_power", 4}}}}},
      {"Int8States", Json{{"optimizer", {{"state_dtype", "int8"}}}}},
      {"Bf16States", with(kBf16, {{"optimizer", {{"state_dtype", "bf16"}}}})},
      {"Lion", with(kBf16, optimizer("Lion"))},
      {"Adagrad", optimizer("Adagrad")},
      {"Sgd", with(kBf16, optimizer("SGD", sgd))},
      {"Lamb", with(kBf16, optimizer("Lamb"))},
      {"LambInt8", with(optimizer("Lamb"), {{"optimizer", {{"state_dtype", "int8"}}}})},
      {"Muon", with(kBf16, optimizer("Muon"))}};
}

class OffloadUpdates : public GpuModel, public ::testing::WithParamInterface<Case> {};

// Also: on the CPU the key changes nothing, and how an update is cut makes no difference.
TEST_P(OffloadUpdates, HaveTheBitsOfTheCpu) {
  const Case& one = GetParam();
  for (const int accumulation : {1, 3}) {
    const Json config =
        with(with(base_config(), one.config), {{"gradient_accumulation_steps", accumulation}});
    const Json offload = offloaded(config, one.pinned);
    Json plain = offload;
    plain["zero_optimization"] = {{"reduce_scatter", false}};
    const auto cpu = offload_engine(plain, false), same = offload_engine(offload, false);
    const auto gpu = offload_engine(offload);
    const uint64_t seed = ds::fresh_seed();
    for (uint64_t i = 0; i < static_cast<uint64_t>(3 * accumulation); ++i) {
      const StepReport expected = step_with_random_gradients(*cpu, seed + i);
      step_with_random_gradients(*same, seed + i);
      const StepReport actual = step_with_random_gradients(*gpu, seed + i);
      EXPECT_EQ(actual.applied, expected.applied);
      EXPECT_EQ(actual.grad_norm, expected.grad_norm);
    }
    EXPECT_TRUE(same_bits(weights_of(*same), weights_of(*cpu)));
    EXPECT_TRUE(same_bits(weights_of(*gpu), weights_of(*cpu))) << "seed " << seed;
    EXPECT_TRUE(same_bits(states_of(*gpu), states_of(*cpu))) << "seed " << seed;
    expect_weights_follow(*gpu);
  }
}

// To the CPU, to a GPU that keeps everything, and back.
TEST_P(OffloadUpdates, CheckpointsGoAcross) {
  const Case& one = GetParam();
  const Folder folder;
  const Json config = with(with(base_config(), one.config), {{"gradient_accumulation_steps", 2}});
  const Json offload = offloaded(config, one.pinned);
  const auto straight = offload_engine(offload);
  const uint64_t seed = ds::fresh_seed();
  for (uint64_t i = 0; i < 3; ++i) step_with_random_gradients(*straight, seed + i);
  straight->save(folder.path("a"), "open");  // with an open step

  Json plain = offload;
  plain["zero_optimization"] = {{"reduce_scatter", false}};
  std::string last = folder.path("a");
  for (const bool gpu : {false, true}) {
    const auto other = offload_engine(plain, gpu);
    other->load(last, "open");
    EXPECT_TRUE(same_bits(weights_of(*other), weights_of(*straight)));
    EXPECT_TRUE(same_bits(states_of(*other), states_of(*straight)));
    last = folder.path(gpu ? "gpu" : "cpu");
    other->save(last, "open");
  }
  const auto resumed = offload_engine(offload);
  step_with_random_gradients(*resumed, seed + 7);  // whatever it did before must not matter
  resumed->load(last, "open");
  expect_weights_follow(*resumed);
  for (const auto& engine : {straight.get(), resumed.get()}) {
    step_with_random_gradients(*engine, seed + 3);
    step_with_random_gradients(*engine, seed + 4);
  }
  EXPECT_TRUE(same_bits(weights_of(*resumed), weights_of(*straight)));
  EXPECT_TRUE(same_bits(states_of(*resumed), states_of(*straight)));
  expect_weights_follow(*resumed);
}

INSTANTIATE_TEST_SUITE_P(Cases, OffloadUpdates, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return std::string(one.param.name); });

Json super_offload(const Json& more) {
  return with(more, {{"zero_optimization", {{"offload_optimizer", {{"super_offload", true}}}}}});
}

struct Training {
  const char* name;
  Json config;
  bool pinned;
  double weight;  // largest difference from the GPU without offload
};
void PrintTo(const Training& one, std::ostream* out) { *out << one.name; }

class OffloadTraining : public GpuModel, public ::testing::WithParamInterface<Training> {};

// The gradients of the first step are those of the GPU, to the bit where one micro batch makes
// them; later ones differ by what the updates' roundings make of the weights.
TEST_P(OffloadTraining, FollowsTheGpu) {
  const Training& one = GetParam();
  for (const int accumulation : {1, 3}) {
    const Json config = with(
        with(base_config(), one.config),
        {{"gradient_accumulation_steps", accumulation}, {"train_micro_batch_size_per_gpu", 1}});
    Json plain = offloaded(config);
    plain["zero_optimization"] = Json::object();
    const auto whole = offload_engine(plain);
    const auto engine = offload_engine(offloaded(config, one.pinned));
    const auto again = offload_engine(offloaded(config, one.pinned));
    for (int i = 0; i < 2; ++i) {
      const StepReport expected = whole->train_batch(), actual = engine->train_batch();
      EXPECT_EQ(actual.applied, expected.applied);
      if (i == 0) {
        EXPECT_EQ(actual.loss, expected.loss);
        const double bound = accumulation == 1 ? 0 : 1e-6 * expected.grad_norm;
        EXPECT_NEAR(actual.grad_norm, expected.grad_norm, bound);
      }
      EXPECT_EQ(again->train_batch().loss, actual.loss);
    }
    EXPECT_LT(largest_difference(weights_of(*engine), weights_of(*whole)), one.weight);
    EXPECT_TRUE(same_bits(weights_of(*engine), weights_of(*again)));
    EXPECT_TRUE(same_bits(states_of(*engine), states_of(*again)));
    expect_weights_follow(*engine);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, OffloadTraining,
    ::testing::Values(Training{"Fp32", Json::object(), true, 2e-4},
                      Training{"Fp32Pageable", Json::object(), false, 2e-4},
                      Training{"Bf16", with(kBf16, {{"gradient_clipping", 0.1}}), true, 5e-2},
                      Training{"SuperOffload", super_offload(Json::object()), true, 2e-4},
                      Training{"SuperOffloadPageable", super_offload(kBf16), false, 5e-2},
                      Training{"Checkpointed",
                               Json{{"activation_checkpointing", {{"enabled", true}}}}, true,
                               2e-4}),
    [](const auto& one) { return std::string(one.param.name); });

// Updates ahead of the step: the bits of updates within it, kept or undone.
// Half of the combinations, in which every pair of values occurs; all with DS_TEST_FULL=1.
TEST_F(Offload, UpdatesAheadOfTheStepHaveTheSameBits) {
  const Json kinds[] = {
      Json::object(), with(kBf16, {{"gradient_clipping", 0.1}}),
      Json{{"bf16", {{"enabled", true}, {"split_master", true}}}},
      Json{{"fp16", {{"enabled", true}, {"initial_scale_power", 17}, {"hysteresis", 1}}}}};
  for (int index = 0; index < 4; ++index) {
    const Json& kind = kinds[index];
    for (const bool pinned : {false, true}) {
      for (const int accumulation : {1, 2}) {
        if (!in_sample(index + (pinned ? 1 : 0) + accumulation)) continue;
        SCOPED_TRACE(str_cat(dump_json(kind), ", pinned ", pinned, ", ", accumulation));
        const Json config = offloaded(
            with(with(base_config(), kind), {{"gradient_accumulation_steps", accumulation},
                                             {"train_micro_batch_size_per_gpu", 1}}),
            pinned);
        const auto plain = offload_engine(config);
        const auto ahead = offload_engine(with(config, super_offload(Json::object())));
        for (int i = 0; i < 3; ++i) {
          EXPECT_EQ(ahead->train_batch().grad_norm, plain->train_batch().grad_norm);
        }
        EXPECT_TRUE(same_bits(weights_of(*ahead), weights_of(*plain)));
        EXPECT_TRUE(same_bits(states_of(*ahead), states_of(*plain)));
        expect_weights_follow(*ahead);
      }
    }
  }
}

// Each micro batch's gradients leave the GPU and are added on the host.
TEST_F(Offload, GradientsOfBackwardAndOfTheCaller) {
  const Json config = with(base_config(), {{"gradient_accumulation_steps", 1}});
  Json plain = offloaded(config);
  plain["zero_optimization"] = Json::object();
  const auto whole = offload_engine(plain);
  for (const bool pinned : {true, false}) {
    const auto engine = offload_engine(offloaded(config, pinned));
    const std::vector<int64_t> ids(static_cast<size_t>(2 * 16), 5);
    const MicroBatch batch{ids_tensor(ids, 2), ids_tensor(ids, 2), {}, {}, {}};
    const nn::ParameterSet& parameters = engine->model()->parameters();
    for (Engine* one : {whole.get(), engine.get()}) one->backward(one->forward(batch));
    // A GPU that is fast: it is done with all buckets while copies have hardly begun.
    engine->model()->device()->default_stream().synchronize();
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      EXPECT_TRUE(same_bits(flat(engine->gradients().get(parameters[id].name)),
                            flat(whole->gradients().get(parameters[id].name))))
          << parameters[id].name;
    }
    // Others come on top, and one is set.
    std::mt19937_64 random(ds::fresh_seed());
    const std::string name = "h.1.mlp.c_fc.weight";
    const nn::ParamId id = parameters.find(name);
    const Tensor more = random_tensor(random, parameters[id].shape);
    const Tensor* const pointer = &more;
    const int64_t index = id;
    const std::vector<float> before = flat(engine->gradients().get(name));
    engine->gradients().add({&index, 1}, {&pointer, 1});
    std::vector<float> sum = flat(engine->gradients().get(name));
    for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], before[i] + more.data<float>()[i]);
    EXPECT_TRUE(same_bits(flat(engine->values().local(name, "gradient")), sum));
    engine->gradients().set(name, more);
    EXPECT_TRUE(same_bits(flat(engine->gradients().get(name)), flat(more)));
    engine->values().set_local(name, "gradient", more.view({more.elements()}));
    EXPECT_TRUE(engine->step().applied);
    // Cleared: the next ones begin at zero.
    give_random_gradients(*engine, 3);
    engine->discard_gradients();
    engine->gradients().set(name, more);
    EXPECT_TRUE(same_bits(flat(engine->gradients().get(name)), flat(more)));
    EXPECT_EQ(engine->gradients().get("wte.weight").data<float>()[0], 0);
    engine->discard_gradients();
    whole->discard_gradients();
    train_state(*whole->model());
  }
}

TEST_F(Offload, ValuesOfTheCaller) {
  std::mt19937_64 random(ds::fresh_seed());
  for (const Json& config :
       {Json::object(), kBf16, Json{{"bf16", {{"enabled", true}, {"split_master", true}}}}}) {
    const auto engine = offload_engine(offloaded(with(base_config(), config)));
    const std::string name = "h.0.attn.c_attn.weight";
    const int64_t index = engine->model()->parameters().find(name);
    const Shape shape = engine->model()->parameters()[static_cast<nn::ParamId>(index)].shape;
    const Tensor state = random_tensor(random, shape), value = random_tensor(random, shape);
    engine->values().set_optimizer_state(name, "exp_avg", state);
    EXPECT_TRUE(same_bits(flat(engine->values().optimizer_state(name, "exp_avg")), flat(state)));
    EXPECT_TRUE(same_bits(flat(engine->values().local(name, "exp_avg")), flat(state)));
    engine->model()->set(name, value);
    EXPECT_TRUE(same_bits(flat(engine->model()->get(name)), flat(value)));
    expect_weights_follow(*engine);
    engine->values().set_local(name, "parameter", state.view({state.elements()}));
    EXPECT_TRUE(same_bits(flat(engine->values().local(name, "parameter")), flat(state)));
    expect_weights_follow(*engine);
    const std::vector<Tensor> gathered = engine->scopes().gather({&index, 1});
    EXPECT_TRUE(same_bits(flat(gathered[0]), flat(state)));
    gathered[0].data<float>()[3] = 42;
    engine->scopes().scatter({&index, 1}, 0);
    EXPECT_EQ(engine->model()->get(name).data<float>()[3], 42);
    expect_weights_follow(*engine);
  }
}

TEST_F(Offload, ABadGradientSkipsTheStepAndIsNamed) {
  const Json fp16 = {{"fp16", {{"enabled", true}, {"initial_scale_power", 4}, {"hysteresis", 1}}},
                     {"gradient_accumulation_steps", 1}};
  const auto engine = offload_engine(offloaded(with(base_config(), fp16)));
  const std::vector<float> before = weights_of(*engine), states = states_of(*engine);
  const std::string name = "h.1.mlp.c_fc.weight";
  const nn::ParameterSet& parameters = engine->model()->parameters();
  std::mt19937_64 random(1);
  Tensor bad = random_tensor(random, parameters[parameters.find(name)].shape);
  bad.data<float>()[17] = std::numeric_limits<float>::infinity();
  engine->gradients().set(name, bad);
  const StepReport report = engine->step();
  EXPECT_FALSE(report.applied);
  EXPECT_EQ(report.first_bad_tensor, name);
  EXPECT_LT(engine->loss_scale(), report.loss_scale);
  EXPECT_TRUE(same_bits(weights_of(*engine), before));
  EXPECT_TRUE(same_bits(states_of(*engine), states));
  EXPECT_TRUE(step_with_random_gradients(*engine, 5).applied);
  expect_weights_follow(*engine);
}

TEST_F(Offload, FrozenWeightsAndAdapters) {
  const Json config = with(base_config(), with(kBf16, {{"gradient_accumulation_steps", 1}}));
  std::vector<std::vector<float>> weights;
  for (const bool gpu : {false, true}) {
    const auto model = make_model(offload_model(), gpu);
    models::LoraOptions options;
    options.r = 3;
    options.target_modules = {"all-linear"};
    models::add_lora(*model, options);
    Engine engine(dump_json(offloaded(config)), model, nullptr);
    for (uint64_t i = 0; i < 2; ++i) step_with_random_gradients(engine, 11 + i);
    weights.push_back(weights_of(*model));
    if (!gpu) continue;
    EXPECT_TRUE(same_bits(weights[0], weights[1]));
    expect_weights_follow(engine);
    engine.set_dataset(periodic_data());
    const std::vector<float> frozen = flat(model->get("h.0.mlp.c_fc.weight"));
    EXPECT_TRUE(engine.train_batch().applied);
    EXPECT_TRUE(same_bits(flat(model->get("h.0.mlp.c_fc.weight")), frozen));
    EXPECT_FALSE(same_bits(weights_of(*model), weights[1]));
    expect_weights_follow(engine);
  }
}

// Afterwards the model is as any other, and whether it trains again is up to the next engine.
TEST_F(Offload, TheModelGoesOnWithoutTheEngine) {
  for (const Json& config :
       {Json::object(), kBf16, Json{{"bf16", {{"enabled", true}, {"split_master", true}}}}}) {
    const Json offload = offloaded(with(
        with(base_config(), config), {{"gradient_accumulation_steps", 1}, {"scheduler", nullptr}}));
    const auto model = make_model(offload_model(), true);
    const auto train = [&](const Json& how, uint64_t seed) {
      Engine engine(dump_json(how), model, nullptr);
      step_with_random_gradients(engine, seed);
      return weights_of(engine);
    };
    std::vector<float> last = train(offload, 1);
    EXPECT_TRUE(same_bits(weights_of(*model), last));
    std::mt19937_64 random(ds::fresh_seed());
    const std::string name = model->parameters()[0].name;
    const Tensor value = random_tensor(random, model->parameters()[0].shape);
    model->set(name, value);
    EXPECT_TRUE(same_bits(flat(model->get(name)), flat(value)));
    train(offload, 2);
    {
      const Tensor weight = model->reader().acquire(0);  // to the GPU
      EXPECT_FALSE(on_host(weight));
      model->reader().release(0);
    }
    last = weights_of(*model);
    Json plain = offload;
    plain["zero_optimization"] = Json::object();
    train(plain, 3);
    EXPECT_FALSE(same_bits(weights_of(*model), last));
    train(offload, 4);
    last = weights_of(*model);
    // Masters that lie on the host still, and the same ones on the GPU.
    const models::InferenceOptions bf16{.weights = models::WeightForm::kBFloat16, .threads = 1};
    const std::vector<float> prepared = weights_of(*model->prepared_copy(bf16));
    static_cast<void>(model->reader());
    EXPECT_TRUE(same_bits(weights_of(*model->prepared_copy(bf16)), prepared));
    EXPECT_TRUE(same_bits(weights_of(*model), last));
    model->set_device(make_cpu_device());
    EXPECT_TRUE(same_bits(weights_of(*model), last));
  }
}

// Blocks have sizes of a few classes: up to an eighth more than what was asked for.
void expect_bytes(int64_t actual, int64_t asked) {
  EXPECT_GE(actual, asked);
  EXPECT_LE(actual, asked + asked / 8);
}

// Per parameter the GPU has the bytes of the compute type, and buckets of gradients on their way.
TEST_F(Offload, TheGpuHoldsWeightsAndBucketsAlone) {
  const Json config = with(base_config(), with(kBf16, {{"gradient_accumulation_steps", 2}}));
  const auto engine = offload_engine(offloaded(config));
  engine->train_batch();
  const zero::FlatLayout& layout = train_state(*engine->model()).layout().flat();
  const Device& gpu = *engine->model()->device();
  int64_t largest = 0;
  for (const zero::Bucket& bucket : layout.buckets()) {
    largest = std::max(largest, bucket.range.elements());
  }
  EXPECT_GT(std::ssize(layout.buckets()), 4);
  expect_bytes(gpu.account().peak(MemoryTag::kParameters), 2 * layout.elements());
  EXPECT_EQ(gpu.account().peak(MemoryTag::kGradients), 0);
  EXPECT_EQ(gpu.account().peak(MemoryTag::kOptimizer), 0);
  // Three small ones, and one that the largest needs.
  EXPECT_GE(gpu.account().peak(MemoryTag::kCommunication), 4 * largest);
  EXPECT_LE(gpu.account().peak(MemoryTag::kCommunication), 4 * 4 * largest);

  const Device& host = *host_memory_of(engine->model()->device());
  const MemoryAccount& account = host.account();
  expect_bytes(account.now(MemoryTag::kParameters), 4 * layout.elements());
  expect_bytes(account.now(MemoryTag::kGradients), 4 * layout.trainable_elements());
  expect_bytes(account.now(MemoryTag::kOptimizer), 8 * layout.trainable_elements());
  const Json report = engine->memory_report();
  const Json& tags = report.at("host").at("pinned").at("tags");
  EXPECT_EQ(tags.at("parameters").at("now"), account.now(MemoryTag::kParameters));
  EXPECT_EQ(tags.at("gradients").at("now"), account.now(MemoryTag::kGradients));
  EXPECT_EQ(report.at("tags").at("optimizer").at("peak"), 0);
}

TEST_F(Offload, AModelThatTheGpuCannotHoldTrains) {
  const Json config = with(base_config(), with(kBf16, {{"gradient_accumulation_steps", 1},
                                                       {"train_micro_batch_size_per_gpu", 1}}));
  // Room for the fp32 masters and half as much: not for gradients and moments.
  const auto probe = models::Model::create(offload_model(), 3);
  const int64_t limit = probe->parameters().elements() * 6;
  const auto model_with_limit = [&] {
    const auto model = models::Model::create(offload_model(), 3);
    model->set_device(make_cuda_device(0, {.limit_bytes = limit}));
    return model;
  };
  Json plain = offloaded(config);
  plain["zero_optimization"] = Json::object();
  EXPECT_THAT(error_of(Code::kOutOfMemory,
                       [&] { const Engine engine(dump_json(plain), model_with_limit(), nullptr); }),
              HasSubstr("cuda:0"));
  const auto engine =
      std::make_unique<Engine>(dump_json(offloaded(config)), model_with_limit(), nullptr);
  engine->set_dataset(periodic_data());
  const auto free = offload_engine(offloaded(config));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(engine->train_batch().loss, free->train_batch().loss);
  EXPECT_LT(engine->model()->device()->account().total_peak(), limit);
  EXPECT_TRUE(same_bits(weights_of(*engine), weights_of(*free)));
}

// Elsewhere: what the configuration refuses.
TEST_F(Offload, WhatItDoesNotDo) {
  const auto engine = offload_engine(offloaded(base_config()));
  EXPECT_THAT(error_of(Code::kUnsupported, [&] { engine->gradients().view("wte.weight"); }),
              HasSubstr("gradients lie where"));
  nn::ParameterSet set;
  set.add({"own", {4}});
  const auto own = models::Model::from_parameters(std::move(set));
  own->set_device(make_cuda_device(0));
  EXPECT_THAT(
      error_of(Code::kUnsupported,
               [&] { const Engine one(dump_json(offloaded(base_config())), own, nullptr); }),
      HasSubstr("own parameters on a GPU"));
}

}  // namespace
}  // namespace ds
