// Lifetimes: handles destroyed in every order, objects that outlive their handles, and handles
// destroyed while a call is inside.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "base/text.h"
#include "capi/world.h"

namespace capi_test {
namespace {

int64_t live(HandleKind kind) { return ds::capi::HandleTable::instance().live(kind); }

// One handle of each kind that the others use, in every order of ending: 5! = 120 worlds.
TEST(Lifetime, EveryOrderOfDestruction) {
  std::array<HandleKind, 5> order = {HandleKind::kComm, HandleKind::kTokenizer,
                                     HandleKind::kDataset, HandleKind::kModel, HandleKind::kEngine};
  std::array<int64_t, ds::capi::kHandleKinds + 1> before{};
  for (const HandleKind kind : kAllKinds) before[static_cast<size_t>(kind)] = live(kind);
  std::ranges::sort(order);
  do {
    World world;
    bool engine_alive = true;
    for (const HandleKind kind : order) {
      destroy_handle(kind, world.handle(kind));
      engine_alive = engine_alive && kind != HandleKind::kEngine;
      if (!engine_alive) continue;
      // What the engine uses, it keeps.
      ds_step_report report = {};
      report.struct_size = sizeof(report);
      ASSERT_DS_OK(ds_engine_train_batch(world.engine, &report));
      ASSERT_EQ(report.applied, 1);
    }
  } while (std::ranges::next_permutation(order).found);
  for (const HandleKind kind : kAllKinds) {
    EXPECT_EQ(live(kind), before[static_cast<size_t>(kind)]) << static_cast<int>(kind);
  }
}

TEST(Lifetime, ResultsOutliveTheirMakers) {
  ds_tensor* loss = nullptr;
  ds_tensor* weights = nullptr;
  ds_tensor* tokens = nullptr;
  {
    World world;
    loss = world.forward();
    ASSERT_DS_OK(
        ds_model_get_parameter(world.model, index_of(world.model, "wte.weight"), &weights));
    ASSERT_DS_OK(ds_tokenizer_encode(world.tokenizer, "abc", -1, 0, &tokens));
  }
  double value = 0;
  EXPECT_DS_OK(ds_tensor_item(loss, &value));
  EXPECT_NEAR(value, std::log(256.0), 0.5);  // fresh weights know nothing
  std::vector<float> read(static_cast<size_t>(kVocab * 16));
  EXPECT_DS_OK(ds_tensor_read(weights, read.data(), kVocab * 16 * 4));
  int32_t ids[3];
  EXPECT_DS_OK(ds_tensor_read(tokens, ids, sizeof(ids)));
  EXPECT_THAT(ids, ::testing::ElementsAre('a', 'b', 'c'));
  ds_tensor_destroy(loss);
  ds_tensor_destroy(weights);
  ds_tensor_destroy(tokens);
}

TEST(Lifetime, AModelServesOneEngineAtATime) {
  World world;
  ds_engine* second = nullptr;
  EXPECT_EQ(ds_engine_create(engine_config().c_str(), nullptr, world.model, nullptr, &second),
            DS_ERR_STATE);
  EXPECT_EQ(second, nullptr);
  ds_engine_destroy(world.engine);
  ASSERT_DS_OK(ds_engine_create(engine_config().c_str(), nullptr, world.model, nullptr, &second));
  EXPECT_NE(second, world.engine);
  ds_optimizer_info info = DS_OPTIMIZER_INFO_INIT;
  EXPECT_EQ(ds_optimizer_describe(world.optimizer, &info), DS_ERR_STATE);
  ds_engine_destroy(second);
}

struct Inside {
  World* world;
  ds_tensor* prompt;
  int tokens = 0;
};

// Called within ds_generator_generate: ends the handles that the call is using.
int32_t destroy_everything(void* user_data, int32_t) {
  auto* const inside = static_cast<Inside*>(user_data);
  ++inside->tokens;
  ds_generator_destroy(inside->world->generator);
  ds_model_destroy(inside->world->model);
  ds_tensor_destroy(inside->prompt);
  ds_model_info info = DS_MODEL_INFO_INIT;
  EXPECT_EQ(ds_model_describe(inside->world->model, &info), DS_ERR_INVALID_ARGUMENT);
  return 0;
}

TEST(Lifetime, HandlesDestroyedWhileACallIsInside) {
  World world;
  ds_engine_destroy(world.engine);
  Inside inside = {&world, make_list({1, 2, 3})};
  ds_generate_options options = {};
  options.struct_size = sizeof(options);
  options.max_tokens = 8;
  ds_tensor* out = nullptr;
  ASSERT_DS_OK(ds_generator_generate(world.generator, inside.prompt, &options, destroy_everything,
                                     &inside, &out));
  EXPECT_EQ(inside.tokens, 8);
  const auto count = info_of(out).elements;
  EXPECT_EQ(count, 8);
  ds_tensor_destroy(out);
}

// An engine that ends takes its bfloat16 copy of the weights with it: not while they are in use.
TEST(Lifetime, EngineDestroyedWhileItsModelGenerates) {
  World world;
  ds_engine_destroy(world.engine);
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})";
  ds_generate_options options = {};
  options.struct_size = sizeof(options);
  options.max_tokens = 6;
  const auto generate = [&](ds_token_fn on_token, void* user_data) {
    ds_tensor* out = nullptr;
    EXPECT_DS_OK(
        ds_generator_generate(world.generator, world.list, &options, on_token, user_data, &out));
    std::vector<int32_t> ids(6);
    EXPECT_DS_OK(ds_tensor_read(out, ids.data(), 24));
    ds_tensor_destroy(out);
    return ids;
  };
  const auto destroy_engine = [](void* engine, int32_t) -> int32_t {
    ds_engine_destroy(static_cast<ds_engine*>(engine));
    return 0;
  };
  ASSERT_DS_OK(ds_engine_create(config.c_str(), nullptr, world.model, nullptr, &world.engine));
  const std::vector<int32_t> expected = generate(nullptr, nullptr);
  // By the callback of the call itself.
  EXPECT_EQ(generate(destroy_engine, world.engine), expected);
  // It has ended with that call: the model is free for another.
  ASSERT_DS_OK(ds_engine_create(config.c_str(), nullptr, world.model, nullptr, &world.engine));
  // By another thread, which does not wait.
  const auto destroy_elsewhere = [](void* engine, int32_t) -> int32_t {
    std::thread([&] { ds_engine_destroy(static_cast<ds_engine*>(engine)); }).join();
    return 0;
  };
  EXPECT_EQ(generate(destroy_elsewhere, world.engine), expected);
  ASSERT_DS_OK(ds_engine_create(config.c_str(), nullptr, world.model, nullptr, &world.engine));
  // By another thread at any moment.
  for (int round = 0; round < 20; ++round) {
    std::thread other([&] { ds_engine_destroy(world.engine); });
    EXPECT_EQ(generate(nullptr, nullptr).size(), 6u);
    other.join();
    ASSERT_DS_OK(ds_engine_create(config.c_str(), nullptr, world.model, nullptr, &world.engine));
  }
}

// A release callback that uses the library: the table's locks are not held while it runs.
TEST(Lifetime, ReleaseMayUseTheLibrary) {
  static std::atomic<int> called{0};
  called = 0;
  ds_tensor* other = make_list({1});
  float memory[1] = {1};
  ds_tensor* wrapped = nullptr;
  ASSERT_DS_OK(ds_tensor_from_buffer(
      memory, DS_FLOAT32, nullptr, nullptr, 0,
      [](void* user_data) {
        ds_tensor_destroy(static_cast<ds_tensor*>(user_data));
        ++called;
      },
      other, &wrapped));
  ds_tensor_destroy(wrapped);
  EXPECT_EQ(called.load(), 1);
  double value = 0;
  EXPECT_EQ(ds_tensor_item(other, &value), DS_ERR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace capi_test
