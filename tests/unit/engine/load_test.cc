// Loading into the engine's own memory: every form of the state arrives bit for bit from files that
// are read past the page cache, and damage found half way never leaves a mixture that can be used.
#include <gmock/gmock.h>

#include <array>
#include <fstream>

#include "engine/external_gradients.h"
#include "engine_world.h"
#include "models/adapters.h"

namespace ds {
namespace {

using ::testing::HasSubstr;
using namespace engine_test;  // NOLINT: what these tests are about

// Its blob has a dozen chunks.
Json large_model() {
  Json model = model_config(0);
  model["vocab_size"] = 4096;
  model["n_embd"] = 128;
  return model;
}

std::unique_ptr<Engine> make_large(const Json& change = Json::object()) {
  return make_engine(with(base_config(), change), large_model());
}

// Masters and optimizer state, by parameter.
std::vector<float> everything(Engine& engine) {
  std::vector<float> out;
  const nn::ParameterSet& parameters = engine.model()->parameters();
  const auto append = [&](const Tensor& t) {
    out.insert(out.end(), t.data<float>(), t.data<float>() + t.elements());
  };
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    append(engine.model()->get(parameters[id].name));
    if (!parameters[id].trainable) continue;
    for (const std::string& state : engine.values().optimizer_states(parameters[id].name)) {
      append(engine.values().optimizer_state(parameters[id].name, state));
    }
  }
  return out;
}

// Turns one bit of a file, `part` of the way through it.
void damage(const std::string& path, double part) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(part * static_cast<double>(fs::file_size(path) - 1));
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
  ASSERT_TRUE(file.flush().good());
}

std::string blob_of(const Folder& folder, const std::string& tag) {
  const std::string path = folder.path((tag + "/data-00000.bin").c_str());
  EXPECT_GT(fs::file_size(path), 8u << 20) << "small files are read in another way";
  return path;
}

constexpr std::array<double, 3> kPlaces = {0.0, 0.5, 1.0};

// Nothing gets at an engine whose weights are a mixture, or at its model.
void expect_unusable(Engine& engine, const std::string& folder) {
  const auto refused = [&](const auto& fn) {
    EXPECT_THAT(error_of(Code::kState, fn), HasSubstr("incomplete"));
  };
  const Tensor ids = ids_tensor(std::vector<int64_t>(8, 1), 2);
  refused([&] { engine.train_batch(); });
  refused([&] { engine.forward({ids, ids, {}, {}, {}}); });
  refused([&] { engine.evaluate(*periodic_data(), 1); });
  refused([&] { engine.save(folder, "mixture"); });
  refused([&] { engine.gradients().get("wte.weight"); });
  refused([&] { engine.values().optimizer_state("wte.weight", "exp_avg"); });
  refused([&] { const models::Model::Use use(*engine.model()); });
  EXPECT_FALSE(fs::exists(folder + "/mixture"));
}

struct Form {
  const char* name;
  Json change;
};
void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }

class LoadForm : public ::testing::TestWithParam<Form> {};

TEST_P(LoadForm, ArrivesBitForBit) {
  const Folder folder;
  const auto first = make_large(GetParam().change);
  first->train_batch();
  first->save(folder.path(), "a");
  const std::vector<float> saved = everything(*first);
  const auto second = make_large(GetParam().change);
  second->load(folder.path(), "a");
  EXPECT_TRUE(same_bits(everything(*second), saved)) << "into an engine that has not trained";
  second->train_batch();
  second->load(folder.path(), "a");
  EXPECT_TRUE(same_bits(everything(*second), saved)) << "into one that has";
  first->train_batch();
  second->train_batch();
  EXPECT_TRUE(same_bits(everything(*second), everything(*first))) << "and goes on";
}

INSTANTIATE_TEST_SUITE_P(
    Forms, LoadForm,
    ::testing::Values(Form{"Fp32", Json::object()}, Form{"TwoThreads", {{"threads", 2}}},
                      Form{"Bf16", {{"bf16", {{"enabled", true}}}}},
                      Form{"Bf16Split", {{"bf16", {{"enabled", true}, {"split_master", true}}}}},
                      Form{"Bf16States", {{"optimizer", {{"state_dtype", "bf16"}}}}},
                      Form{"SplitInt8States",
                           {{"bf16", {{"enabled", true}, {"split_master", true}}},
                            {"optimizer", {{"state_dtype", "int8"}}}}}),
    [](const auto& form) { return std::string(form.param.name); });

TEST(Load, FailingHalfWayAFreshEngineCanOnlyLoad) {
  const Folder folder;
  const auto source = make_large();
  source->train_batch();
  source->save(folder.path(), "a");
  source->train_batch();
  source->save(folder.path(), "b");
  const std::vector<float> saved = everything(*source);
  for (const double place : kPlaces) {
    SCOPED_TRACE(place);
    const auto engine = make_large();
    damage(blob_of(folder, "a"), place);
    const std::string why = error_of(Code::kCorrupt, [&] { engine->load(folder.path(), "a"); });
    EXPECT_THAT(why, HasSubstr("data-00000.bin"));
    EXPECT_THAT(why, HasSubstr("can only load"));
    expect_unusable(*engine, folder.path());
    error_of(Code::kNotFound, [&] { engine->load(folder.path(), "none"); });
    error_of(Code::kCorrupt, [&] { engine->load(folder.path(), "a"); });
    expect_unusable(*engine, folder.path());
    engine->load(folder.path(), "b");
    EXPECT_TRUE(same_bits(everything(*engine), saved));
    engine->train_batch();
    damage(blob_of(folder, "a"), place);  // repaired
  }
}

// The first part is of 64 MiB at least. A load that is ended after it leaves what a failed one
// does: a trained engine as it was, unless the machine is too slow to keep what is overwritten.
TEST(Load, EndedHalfWayAFreshEngineCanOnlyLoad) {
  const Folder folder;
  const auto make = [] {
    nn::ParameterSet set;
    nn::Parameter p;
    p.name = "w";
    p.shape = Shape{17 << 20};
    set.add(p);
    Json config = base_config();
    config["scheduler"] = nullptr;
    config["gradient_accumulation_steps"] = 1;
    config["optimizer"] = {{"type", "SGD"}, {"params", {{"lr", 1e-2}, {"momentum", 0.9}}}};
    return std::make_unique<Engine>(dump_json(config),
                                    models::Model::from_parameters(std::move(set)), nullptr);
  };
  const auto trained = make(), fresh = make();
  const auto step = [](Engine& engine, float value) {
    const Tensor gradient =
        Tensor::zeros(make_cpu_device(), DType::kFloat32, Shape{17 << 20}, MemoryTag::kOther);
    *gradient.data<float>() = value;
    const Tensor* const all[] = {&gradient};
    engine.gradients().add({}, all);
    EXPECT_TRUE(engine.step().applied);
  };
  step(*trained, 1);
  trained->save(folder.path(), "a");
  const std::vector<float> saved = weights(*trained);
  step(*trained, 2);
  const std::vector<float> before = weights(*trained);
  for (Engine* const engine : {trained.get(), fresh.get()}) {
    engine->control().set_progress([](const char*, int64_t done, int64_t) { return done == 0; });
    const std::string why = error_of(Code::kCallback, [&] { engine->load(folder.path(), "a"); });
    engine->control().set_progress({});
    const bool mixture = why.find("can only load") != std::string::npos;
    if (engine == fresh.get()) {
      EXPECT_TRUE(mixture) << why;
    }
    if (mixture) {
      EXPECT_THAT(error_of(Code::kState, [&] { step(*engine, 1); }), HasSubstr("incomplete"));
    } else {
      EXPECT_TRUE(same_bits(weights(*engine), before));
    }
  }
  for (Engine* const engine : {trained.get(), fresh.get()}) {
    engine->load(folder.path(), "a");
    EXPECT_TRUE(same_bits(weights(*engine), saved));
  }
}

TEST(Load, AModelWithAMixtureHasNoOtherEngine) {
  const Folder folder;
  auto engine = make_large();
  engine->train_batch();
  engine->save(folder.path(), "a");
  engine = make_large();
  damage(blob_of(folder, "a"), 0.5);
  error_of(Code::kCorrupt, [&] { engine->load(folder.path(), "a"); });
  const std::shared_ptr<models::Model> model = engine->model();
  engine.reset();
  EXPECT_THAT(error_of(Code::kState, [&] { Engine(dump_json(base_config()), model, nullptr); }),
              HasSubstr("make the model again"));
}

// An engine beside it, which nobody loads into, trains on as it does.
TEST_P(LoadForm, FailingLeavesATrainedEngineAsItWas) {
  const Folder folder;
  const auto engine = make_large(GetParam().change), twin = make_large(GetParam().change);
  for (Engine* each : {engine.get(), twin.get()}) each->train_batch();
  engine->save(folder.path(), "a");
  for (const double place : kPlaces) {
    SCOPED_TRACE(place);
    const std::vector<float> before = everything(*engine);
    const Progress progress = engine->progress();
    damage(blob_of(folder, "a"), place);
    error_of(Code::kCorrupt, [&] { engine->load(folder.path(), "a"); });
    error_of(Code::kCorrupt, [&] { engine->load(folder.path(), ""); });
    EXPECT_TRUE(same_bits(everything(*engine), before));
    EXPECT_EQ(engine->progress().samples, progress.samples);
    for (Engine* each : {engine.get(), twin.get()}) each->train_batch();
    EXPECT_TRUE(same_bits(everything(*engine), everything(*twin)));
    damage(blob_of(folder, "a"), place);
  }
  engine->load(folder.path(), "a");
  EXPECT_EQ(engine->progress().steps, 1);
}

// The memory of gradients serves copies of what is overwritten, but where it holds some.
TEST(Load, FailingLeavesTheGradientsOfAnOpenStep) {
  const Json clipped = {{"gradient_clipping", 0.1}};
  for (const bool open : {false, true}) {
    for (const Json& types :
         {Json::object(),
          Json{{"bf16", {{"enabled", true}}}, {"data_types", {{"grad_accum_dtype", "bf16"}}}}}) {
      SCOPED_TRACE(str_cat(open, " ", dump_json(types)));
      const Folder folder;
      const auto engine = make_large(with(clipped, types)), twin = make_large(with(clipped, types));
      const Tensor ids = ids_tensor(std::vector<int64_t>{1, 5, 9, 2, 8, 3, 60, 7}, 2);
      const auto micro_batch = [&](Engine& each) {
        each.backward(each.forward({ids, ids, {}, {}, {}}));
        each.step();
      };
      for (Engine* each : {engine.get(), twin.get()}) each->train_batch();
      engine->save(folder.path(), "a");
      for (Engine* each : {engine.get(), twin.get()}) {
        each->train_batch();
        if (open) micro_batch(*each);
      }
      damage(blob_of(folder, "a"), 1.0);
      error_of(Code::kCorrupt, [&] { engine->load(folder.path(), "a"); });
      for (Engine* each : {engine.get(), twin.get()}) {
        micro_batch(*each);
        if (!open) micro_batch(*each);
      }
      EXPECT_EQ(engine->progress().steps, 3);
      EXPECT_TRUE(same_bits(everything(*engine), everything(*twin)));
    }
  }
}

// What was read of a damaged newest checkpoint is overwritten by the next one.
TEST(Load, DamageInLatestFallsBackToTheOneBefore) {
  const Folder folder;
  const auto source = make_large();
  source->train_batch();
  source->save(folder.path(), "old");
  const std::vector<float> saved = everything(*source);
  source->train_batch();
  source->save(folder.path(), "new");
  for (const double place : kPlaces) {
    for (const bool trained : {false, true}) {
      SCOPED_TRACE(str_cat(place, " ", trained));
      const auto engine = make_large();
      if (trained) engine->train_batch();
      damage(blob_of(folder, "new"), place);
      engine->load(folder.path(), "");
      EXPECT_TRUE(same_bits(everything(*engine), saved));
      EXPECT_EQ(engine->progress().steps, 1);
      engine->train_batch();
      damage(blob_of(folder, "new"), place);
    }
  }
  const auto engine = make_large();
  damage(blob_of(folder, "new"), 0.5);
  damage(blob_of(folder, "old"), 0.5);
  const std::string why = error_of(Code::kCorrupt, [&] { engine->load(folder.path(), ""); });
  EXPECT_THAT(why, HasSubstr("new/data-00000.bin"));
  EXPECT_THAT(why, HasSubstr("old/data-00000.bin"));
  expect_unusable(*engine, folder.path());
}

// A checkpoint without frozen tensors cannot replace those that a failed load has overwritten.
TEST(Load, FrozenTensorsThatWereOverwrittenAreAskedFor) {
  const Folder folder;
  const auto make = [&](bool exclude) {
    auto model = models::Model::create(large_model(), 3);
    models::set_trainable(*model, {"wpe.weight"}, false);
    auto engine = std::make_unique<Engine>(
        dump_json(with(base_config(), {{"checkpoint", {{"exclude_frozen_parameters", exclude}}}})),
        model, nullptr);
    engine->set_dataset(periodic_data());
    return engine;
  };
  const auto whole = make(false), partial = make(true);
  whole->train_batch();
  whole->save(folder.path(), "whole");
  partial->train_batch();
  partial->save(folder.path(), "partial");
  const auto engine = make(false);
  engine->load(folder.path(), "partial");
  damage(blob_of(folder, "whole"), 1.0);
  error_of(Code::kCorrupt, [&] { engine->load(folder.path(), "whole"); });
  EXPECT_THAT(error_of(Code::kCorrupt, [&] { engine->load(folder.path(), "partial"); }),
              HasSubstr("leaves out the frozen wpe.weight"));
  damage(blob_of(folder, "whole"), 1.0);
  engine->load(folder.path(), "whole");
  engine->load(folder.path(), "partial");
  EXPECT_TRUE(same_bits(everything(*engine), everything(*partial)));
}

}  // namespace
}  // namespace ds
