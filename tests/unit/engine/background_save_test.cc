// Saving beside the training (checkpoint.writer.decoupled): what is saved is the state at the call,
// whatever the engine does meanwhile; failures are told; everything that needs the files waits.
#include <fstream>

#include "engine_world.h"

namespace ds {
namespace {

using namespace engine_test;  // NOLINT: what these tests are about

Json background_config() {
  return with(base_config(), {{"checkpoint", {{"writer", {{"decoupled", true}}}}}});
}

void train(Engine& engine, int steps) {
  for (int i = 0; i < steps; ++i) engine.train_batch();
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(BackgroundSave, SavesTheStateAtTheCallWhileTrainingGoesOn) {
  const Folder folder;
  const auto engine = make_engine(background_config());
  const auto plain = make_engine(base_config());
  train(*engine, 3);
  train(*plain, 3);
  const std::vector<float> at_call = weights(*engine);
  engine->save(folder.path("a"), "one");
  train(*engine, 2);
  engine->save(folder.path("a"), "two");  // waits for the first
  train(*engine, 2);
  engine->wait_for_save();
  engine->wait_for_save();
  EXPECT_NE(weights(*engine), at_call);
  plain->save(folder.path("b"), "one");
  const std::string blob = slurp(folder.path("a/one/data-00000.bin"));
  EXPECT_GT(blob.size(), 100'000u);
  EXPECT_TRUE(blob == slurp(folder.path("b/one/data-00000.bin")));
  EXPECT_EQ(slurp(folder.path("a/latest")).substr(0, 4), "two\n");

  const auto resumed = make_engine(background_config());
  resumed->load(folder.path("a"), "one");
  EXPECT_EQ(weights(*resumed), at_call);
  train(*resumed, 4);
  EXPECT_EQ(weights(*resumed), weights(*engine)) << "a resumed run has the same bits";
}

TEST(BackgroundSave, LoadingAndEndingWait) {
  const Folder folder;
  std::vector<float> expected;
  {
    const auto engine = make_engine(background_config());
    train(*engine, 1);
    engine->save(folder.path("s"), "one");
    expected = weights(*engine);
    train(*engine, 1);
    engine->load(folder.path("s"), "");
    EXPECT_EQ(weights(*engine), expected);
    engine->save(folder.path("s"), "two");
  }
  const auto resumed = make_engine(background_config());
  resumed->load(folder.path("s"), "two");
  EXPECT_EQ(weights(*resumed), expected);
}

TEST(BackgroundSave, AFailureIsToldByTheNextSaveOrWait) {
  const Folder folder;
  const auto engine = make_engine(background_config());
  // A folder where the last file of a save should go, which only the writing thread meets.
  fs::create_directories(folder.path("s/latest/full"));
  for (const bool by_wait : {true, false}) {
    engine->save(folder.path("s"), "blocked");
    train(*engine, 1);
    try {
      if (by_wait) {
        engine->wait_for_save();
      } else {
        engine->save(folder.path("s"), "next");
      }
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kIo);
      EXPECT_NE(error.message().find("'blocked' that was being saved in the background"),
                std::string::npos)
          << error.message();
    }
    EXPECT_TRUE(fs::is_directory(folder.path("s/latest")));
    EXPECT_FALSE(fs::exists(folder.path("s/next")));
  }
  fs::remove_all(folder.path("s/latest"));
  engine->save(folder.path("s"), "next");
  engine->wait_for_save();
  EXPECT_TRUE(fs::exists(folder.path("s/next/manifest.dsm")));
}

TEST(BackgroundSave, AFolderThatCannotBeMadeIsToldAtOnce) {
  const Folder folder;
  std::ofstream(folder.path("file")) << "x";
  const auto engine = make_engine(background_config());
  EXPECT_THROW(engine->save(folder.path("file"), "one"), Error);
  EXPECT_NO_THROW(engine->wait_for_save());
}

TEST(BackgroundSave, MemoryIsCountedAndKept) {
  const Folder folder;
  const auto engine = make_engine(background_config());
  const auto held = [&] { return engine->model()->device()->account().now(MemoryTag::kIo); };
  EXPECT_EQ(held(), 0);
  engine->save(folder.path("s"), "one");
  engine->wait_for_save();
  const int64_t after_one = held();
  EXPECT_GT(after_one, 0);
  engine->save(folder.path("s"), "two");
  engine->wait_for_save();
  EXPECT_EQ(held(), after_one);
}

}  // namespace
}  // namespace ds
