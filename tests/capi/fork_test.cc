// A process that forks: its child may end the parent's handles, in any order and at any moment, and
// may make its own. Nothing hangs, nothing of the parent is touched.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>

#include "capi/world.h"

namespace capi_test {
namespace {

// Runs `body` in a forked child; gives its result, or -1 when it did not end.
int in_child(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  for (int tenths = 0; tenths < 600; ++tenths) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return -1;
}

int destroy_all(const World& world) {
  for (const HandleKind kind : kAllKinds) {
    if (kind != HandleKind::kOptimizer) destroy_handle(kind, world.handle(kind));
  }
  return 0;
}

TEST(Fork, AChildEndsTheHandlesOfItsParent) {
  World world;
  ASSERT_DS_OK(ds_engine_train_batch(world.engine, nullptr));  // its threads are at work
  EXPECT_EQ(in_child([&] { return destroy_all(world); }), 0);
  // Threads that wait for work, and threads that have gone to sleep.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(in_child([&] { return destroy_all(world); }), 0);
  ASSERT_DS_OK(ds_engine_train_batch(world.engine, nullptr));
  const auto step = info_of(world.engine).step;
  EXPECT_EQ(step, 2);
}

TEST(Fork, AChildTrainsAModelOfItsOwn) {
  World world;
  ASSERT_DS_OK(ds_engine_train_batch(world.engine, nullptr));
  EXPECT_EQ(in_child([&] {
              World own;
              if (ds_engine_train_batch(own.engine, nullptr) != DS_OK) return 1;
              return destroy_all(world);
            }),
            0);
  ASSERT_DS_OK(ds_engine_train_batch(world.engine, nullptr));
}

TEST(Fork, AChildReadsTheDataOfItsParent) {
  World world;
  EXPECT_EQ(in_child([&] {
              ds_tensor* tokens = nullptr;
              if (ds_dataset_sample(world.dataset, 0, &tokens) != DS_OK) return 1;
              ds_tensor_destroy(tokens);
              if (ds_tokenizer_encode(world.tokenizer, "text", -1, 0, &tokens) != DS_OK) return 2;
              ds_tensor_destroy(tokens);
              return destroy_all(world);
            }),
            0);
}

// The child must not end, clean or publish what the parent is saving.
TEST(Fork, AChildLeavesASaveInTheBackgroundAlone) {
  World world;
  ds_engine* engine = nullptr;
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW"},
          "checkpoint": {"writer": {"decoupled": true}}})";
  ds_engine_destroy(world.engine);
  world.engine = nullptr;
  ASSERT_DS_OK(ds_engine_create(config.c_str(), nullptr, world.model, nullptr, &engine));
  const std::string folder = world.folder.file("saved");
  for (int i = 0; i < 5; ++i) {
    const std::string tag = "t" + std::to_string(i);
    ASSERT_DS_OK(ds_engine_save(engine, folder.c_str(), tag.c_str()));
    EXPECT_EQ(in_child([&] {
                ds_engine_destroy(engine);
                return 0;
              }),
              0);
    ASSERT_DS_OK(ds_engine_save_wait(engine));
    EXPECT_DS_OK(ds_engine_load(engine, folder.c_str(), tag.c_str(), nullptr));
  }
  ds_engine_destroy(engine);
}

}  // namespace
}  // namespace capi_test
