// Threads: two on one handle, callbacks that come back, functions marked `Threads: any`, and two
// engines at once.
#include <gmock/gmock.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/text.h"
#include "capi/calls.h"

namespace capi_test {
namespace {

using ::testing::HasSubstr;

ds_generate_options tokens(int64_t count) {
  ds_generate_options options = {};
  options.struct_size = sizeof(options);
  options.max_tokens = count;
  return options;
}

// Keeps a ds_model_generate inside its callback until told to go on.
class Gate {
 public:
  static int32_t wait(void* self, int32_t) {
    auto& gate = *static_cast<Gate*>(self);
    std::unique_lock lock(gate.mutex_);
    gate.inside_ = true;
    gate.changed_.notify_all();
    gate.changed_.wait(lock, [&] { return gate.open_; });
    return 0;
  }
  void wait_until_inside() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return inside_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool inside_ = false;
  bool open_ = false;
};

TEST(Threads, SecondThreadOnOneHandleIsRefused) {
  World world;
  Gate gate;
  std::thread generator([&] {
    const ds_generate_options options = tokens(2);
    ds_tensor* out = nullptr;
    EXPECT_DS_OK(
        ds_generator_generate(world.generator, world.list, &options, Gate::wait, &gate, &out));
    ds_tensor_destroy(out);
  });
  gate.wait_until_inside();
  // The model's own functions, and those of the engine that trains it.
  ds_tensor* out = nullptr;
  EXPECT_EQ(ds_model_get_parameter(world.model, index_of(world.model, "wte.weight"), &out),
            DS_ERR_STATE);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("in use by another thread"));
  const ds_batch batch = batch_of(world.ids, world.ids);
  const ds_batch unlabelled = batch_of(world.ids);
  EXPECT_EQ(ds_generator_logits(world.generator, &unlabelled, &out), DS_ERR_STATE);
  EXPECT_EQ(ds_model_export(world.model, world.folder.file("x").c_str(), DS_FLOAT32, 0),
            DS_ERR_STATE);
  EXPECT_EQ(ds_engine_train_batch(world.engine, nullptr), DS_ERR_STATE);
  EXPECT_EQ(ds_engine_forward(world.engine, &batch, &out), DS_ERR_STATE);
  EXPECT_EQ(ds_tensor_write(world.list, world.folder.path().c_str(), 20), DS_ERR_STATE);
  EXPECT_EQ(out, nullptr);
  // `Threads: any` goes on.
  EXPECT_GT(info_of(world.model).elements, 0);
  char* json = nullptr;
  EXPECT_DS_OK(ds_model_config(world.model, &json));
  ds_string_free(json);
  EXPECT_DS_OK(ds_engine_memory_report(world.engine, &json));
  ds_string_free(json);
  // Reading an input that the other call reads is fine.
  int32_t values[5];
  EXPECT_DS_OK(ds_tensor_read(world.list, values, sizeof(values)));
  gate.open();
  generator.join();
  EXPECT_DS_OK(ds_engine_train_batch(world.engine, nullptr));
}

struct Reentry {
  World* world;
  std::vector<ds_status> statuses;
  std::vector<std::string> texts;
};

int32_t come_back(void* user_data, int32_t) {
  auto* const r = static_cast<Reentry*>(user_data);
  const auto note = [&](ds_status status) {
    r->statuses.push_back(status);
    r->texts.emplace_back(ds_last_error_message());
  };
  const ds_generate_options options = tokens(1);
  ds_tensor* out = nullptr;
  note(
      ds_generator_generate(r->world->generator, r->world->list, &options, nullptr, nullptr, &out));
  note(ds_model_export(r->world->model, r->world->folder.file("y").c_str(), DS_FLOAT32, 0));
  note(ds_engine_train_batch(r->world->engine, nullptr));
  return 0;
}

TEST(Threads, CallbackMayNotComeBack) {
  World world;
  Reentry reentry = {&world, {}, {}};
  const ds_generate_options options = tokens(1);
  ds_tensor* out = nullptr;
  EXPECT_DS_OK(
      ds_generator_generate(world.generator, world.list, &options, come_back, &reentry, &out));
  ds_tensor_destroy(out);
  EXPECT_THAT(reentry.statuses, ::testing::ElementsAre(DS_ERR_STATE, DS_ERR_STATE, DS_ERR_STATE));
  EXPECT_THAT(reentry.texts[0], HasSubstr("in use by this thread"));
}

TEST(Threads, CallbackStopsOrThrows) {
  World world;
  const ds_generate_options options = tokens(4);
  ds_tensor* out = nullptr;
  EXPECT_EQ(ds_generator_generate(
                world.generator, world.list, &options, [](void*, int32_t) -> int32_t { return 1; },
                nullptr, &out),
            DS_ERR_CALLBACK);
  EXPECT_EQ(ds_generator_generate(
                world.generator, world.list, &options, [](void*, int32_t) -> int32_t { throw 1; },
                nullptr, &out),
            DS_ERR_CALLBACK);
  EXPECT_EQ(out, nullptr);
  EXPECT_DS_OK(
      ds_generator_generate(world.generator, world.list, &options, nullptr, nullptr, &out));
  ds_tensor_destroy(out);
}

// Every call on shared handles from several threads: each succeeds, or is refused as busy.
TEST(Threads, StormOnSharedHandles) {
  World world;
  constexpr int kThreads = 4;
  std::atomic<int> succeeded{0}, busy{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const ds_generate_options options = tokens(2);
      for (int i = 0; i < 60; ++i) {
        ds_tensor* out = nullptr;
        char* text = nullptr;
        ds_optimizer_info updates = DS_OPTIMIZER_INFO_INIT;
        ds_status status = DS_OK;
        switch ((i + t) % 8) {
          case 0:
            status = ds_engine_train_batch(world.engine, nullptr);
            break;
          case 1:
            status = ds_generator_generate(world.generator, world.list, &options, nullptr, nullptr,
                                           &out);
            break;
          case 2:
            status = ds_tokenizer_encode(world.tokenizer, "some text", -1, 0, &out);
            break;
          case 3:
            status = ds_dataset_sample(world.dataset, i, &out);
            break;
          case 4:
            status = ds_engine_memory_report(world.engine, &text);
            break;
          case 5:
            status = ds_optimizer_describe(world.optimizer, &updates);
            break;
          case 6:
            status = ds_comm_all_reduce(world.comm, world.tensor, DS_REDUCE_SUM);
            break;
          case 7:
            status = ds_model_get_parameter(world.model, 0, &out);
            break;
        }
        ds_tensor_destroy(out);
        ds_string_free(text);
        if (status == DS_OK) {
          ++succeeded;
        } else if (status == DS_ERR_STATE) {
          ++busy;
        } else {
          ++wrong;
          ADD_FAILURE() << ds_last_error_message();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GT(succeeded.load(), 0);
  EXPECT_EQ(succeeded.load() + busy.load(), kThreads * 60);
}

// Destruction from one thread while others call: each call succeeds or is refused.
TEST(Threads, DestroyedUnderOthers) {
  for (int round = 0; round < 20; ++round) {
    World world;
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        while (!go.load()) {
        }
        for (int i = 0; i < 20; ++i) {
          const ds_status status = ds_engine_train_batch(world.engine, nullptr);
          EXPECT_TRUE(status == DS_OK || status == DS_ERR_STATE ||
                      status == DS_ERR_INVALID_ARGUMENT)
              << ds_last_error_message();
          ds_optimizer_info updates = DS_OPTIMIZER_INFO_INIT;
          ds_optimizer_describe(world.optimizer, &updates);
          char* text = nullptr;
          if (ds_engine_memory_report(world.engine, &text) == DS_OK) ds_string_free(text);
        }
      });
    }
    go = true;
    std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
    ds_engine_destroy(world.engine);
    ds_model_destroy(world.model);
    ds_dataset_destroy(world.dataset);
    for (std::thread& thread : threads) thread.join();
  }
}

// Two engines on two threads give what each gives alone, bit for bit.
TEST(Threads, TwoEnginesAtOnce) {
  const auto losses = [] {
    World world;
    std::vector<double> out;
    for (int i = 0; i < 20; ++i) {
      ds_step_report report = {};
      report.struct_size = sizeof(report);
      EXPECT_DS_OK(ds_engine_train_batch(world.engine, &report));
      out.push_back(report.loss);
    }
    return out;
  };
  const std::vector<double> alone = losses();
  std::vector<double> first, second;
  std::thread a([&] { first = losses(); });
  std::thread b([&] { second = losses(); });
  a.join();
  b.join();
  EXPECT_EQ(first, alone);
  EXPECT_EQ(second, alone);
  EXPECT_LT(alone.back(), alone.front());
}

}  // namespace
}  // namespace capi_test
