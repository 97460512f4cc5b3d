// The engine: requests go on beside their callers, in pieces, from several threads; reads pass
// writes; errors come to who waits; what is cancelled ends.
#include "io/engine.h"

#include <gmock/gmock.h>

#include <cstring>
#include <thread>

#include "fresh_seed.h"
#include "io/buffer.h"
#include "unit/io/faulty_backend.h"
#include "unit/io/support.h"

namespace ds::io::test {
namespace {

using ::testing::HasSubstr;

struct EngineWay {
  const char* name;
  BackendKind backend;
  int parallelism;
  bool overlap = true;
};
void PrintTo(const EngineWay& way, std::ostream* out) { *out << way.name; }

class IoEngine : public ::testing::TestWithParam<EngineWay> {
 protected:
  void SetUp() override {
    if (!usable(GetParam().backend)) GTEST_SKIP() << "this system does not allow it";
  }
  static EngineOptions options(int depth, int64_t block) {
    return {{.depth = depth,
             .block_bytes = block,
             .backend = GetParam().backend,
             .overlap = GetParam().overlap},
            GetParam().parallelism};
  }
  TempFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Ways, IoEngine,
                         ::testing::Values(EngineWay{"Uring", BackendKind::kUring, 1},
                                           EngineWay{"Libaio", BackendKind::kLibaio, 2},
                                           EngineWay{"Threads", BackendKind::kThreads, 1},
                                           EngineWay{"Parallel", BackendKind::kBest, 3},
                                           EngineWay{"InRounds", BackendKind::kBest, 2, false}),
                         [](const auto& given) { return std::string(given.param.name); });

TEST_P(IoEngine, MovesEveryByteForSeveralThreadsAtOnce) {
  SCOPED_TRACE("DS_TEST_SEED=" + std::to_string(ds::run_seed()));
  constexpr size_t kSize = 700'000;
  Engine engine(options(4, 32768));
  const auto work = [&](uint64_t thread) {
    std::mt19937_64 rng(ds::run_seed() + thread);
    File file(folder_ / std::to_string(thread).c_str(), Access::kCreate);
    std::vector<std::byte> expected(kSize), memory(kSize + 64);
    for (int round = 0; round < 8; ++round) {
      // One range at any offset, from memory that is aligned to nothing.
      const size_t begin = round == 0 ? 0 : rng() % kSize;
      const size_t bytes = round == 0 ? kSize : rng() % (kSize - begin);
      const std::span<std::byte> part = std::span(memory).subspan(rng() % 64, bytes);
      fill_random(part, rng);
      std::memcpy(expected.data() + begin, part.data(), bytes);
      engine.wait(engine.write(file, static_cast<int64_t>(begin), part));

      const size_t from = rng() % kSize;
      const std::span<std::byte> back = std::span(memory).subspan(rng() % 64, kSize - from);
      engine.wait(engine.read(file, static_cast<int64_t>(from), back));
      ASSERT_EQ(std::memcmp(back.data(), expected.data() + from, back.size()), 0) << round;
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 3; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

TEST_P(IoEngine, CountsWhatItWaitsForAndTellsTheOldestFailure) {
  Engine engine(options(2, 8192));
  std::vector<std::byte> bytes(50'000, std::byte{7}), back(50'000);
  File file(folder_ / "f", Access::kCreate);
  EXPECT_EQ(engine.wait_all(), 0);
  for (int i = 0; i < 5; ++i) engine.write(file, 50'000 * i, bytes);
  EXPECT_EQ(engine.wait_all(), 5);
  EXPECT_EQ(engine.wait_all(), 0);

  const File only_read(folder_ / "f", Access::kRead);
  const Engine::Ticket good = engine.read(file, 0, back);
  const Engine::Ticket bad = engine.write(only_read, 8192, bytes);
  engine.read(file, 240'000, back);  // beyond the end
  const Error error = error_of([&] { engine.wait_all(); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.message(), HasSubstr((folder_ / "f").string()));
  EXPECT_THAT(error.message(), HasSubstr(" at 8192)"));
  EXPECT_TRUE(engine.done(good));
  EXPECT_NO_THROW(engine.wait(bad)) << "a failure is told once";
  EXPECT_EQ(engine.wait_all(), 0);
  EXPECT_EQ(error_of([&] { engine.wait(99); }).code(), Code::kInvalidArgument);
}

TEST_P(IoEngine, MayGoWhileRequestsAreUnderWay) {
  Buffer content(4 << 20);
  std::memset(content.data(), 3, static_cast<size_t>(content.size()));
  for (int round = 0; round < 5; ++round) {
    File file(folder_ / "f", Access::kCreate);
    Engine engine(options(2, 65536));
    engine.write(file, 0, content.bytes());
    engine.read(file, 0, content.bytes().first(static_cast<size_t>(round) * 100));
  }
}

TEST_P(IoEngine, ReadsPassWritesThatWereAskedForBefore) {
  const auto gate = std::make_shared<Gate>();
  EngineOptions given = options(1, 4096);
  given.queue.wrap = gated(gate);
  Engine engine(given);
  std::vector<std::byte> bytes(40'000, std::byte{5}), back(40'000);
  File file(folder_ / "f", Access::kCreate), other(folder_ / "other", Access::kCreate);
  file.write_at(0, bytes);
  const Engine::Ticket write = engine.write(other, 0, bytes);
  engine.wait(engine.read(file, 0, back));
  EXPECT_EQ(back, bytes);
  EXPECT_FALSE(engine.done(write));
  gate->open();
  engine.wait(write);
  EXPECT_TRUE(engine.done(write));
}

TEST_P(IoEngine, CancelEndsWhatHasNotBeenCarriedOut) {
  const auto gate = std::make_shared<Gate>();
  EngineOptions given = options(1, 4096);
  given.queue.wrap = gated(gate);
  Engine engine(given);
  std::vector<std::byte> bytes(400'000, std::byte{5});
  File file(folder_ / "f", Access::kCreate);
  const Engine::Ticket first = engine.write(file, 0, bytes);
  const Engine::Ticket second = engine.write(file, 400'000, bytes);
  int64_t cancelled = -1;
  std::thread canceller([&] { cancelled = engine.cancel(); });
  // Blocks under way end, and only then does cancel return.
  gate->open();
  canceller.join();
  EXPECT_TRUE(engine.done(first));
  EXPECT_TRUE(engine.done(second));
  int64_t aborted = 0;
  for (const Engine::Ticket ticket : {first, second}) {
    try {
      engine.wait(ticket);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kAborted);
      ++aborted;
    }
  }
  EXPECT_EQ(cancelled, aborted);
  EXPECT_EQ(engine.cancel(), 0);
  engine.wait(engine.write(file, 0, bytes));  // it goes on
  std::vector<std::byte> back(bytes.size());
  file.read_at(0, back);
  EXPECT_EQ(back, bytes);
}

// While the gate is shut nothing of the second request can have begun: it is cancelled for certain.
TEST(IoEngineCancel, DropsWhatWaits) {
  const TempFolder folder;
  const auto gate = std::make_shared<Gate>();
  EngineOptions options{{.depth = 1, .block_bytes = 4096}};
  options.queue.wrap = gated(gate);
  std::vector<std::byte> bytes(40'960, std::byte{5});
  File file(folder / "f", Access::kCreate);
  Engine engine(options);
  engine.write(file, 0, bytes);
  std::atomic<int64_t> cancelled{-1};
  std::thread canceller([&] { cancelled = engine.cancel(); });
  std::thread opener([&] {
    // The canceller has the engine's lock, or is about to take it.
    engine.done(1);
    gate->open();
  });
  canceller.join();
  opener.join();
  EXPECT_LE(cancelled, 1);
  if (cancelled == 1) {
    EXPECT_EQ(error_of([&] { engine.wait_all(); }).code(), Code::kAborted);
  } else {
    EXPECT_NO_THROW(engine.wait_all());
  }
}

TEST(IoEngineFinish, RunsBeforeTheWaitReturnsAndMayFail) {
  const TempFolder folder;
  Engine engine({{.block_bytes = 4096}, 2});
  std::vector<std::byte> bytes(100'000, std::byte{9});
  File file(folder / "f", Access::kCreate);
  std::atomic<int> ran{0};
  engine.wait(engine.write(file, 0, bytes, {[&] { ++ran; }}));
  EXPECT_EQ(ran, 1);
  const auto ticket =
      engine.read(file, 0, bytes, {[] { fail(Code::kCorrupt, "other bytes than were written"); }});
  EXPECT_EQ(error_of([&] { engine.wait(ticket); }).code(), Code::kCorrupt);
  // Not after a failure, whose error it would hide.
  const File only_read(folder / "f", Access::kRead);
  const auto refused = engine.write(only_read, 0, bytes, {[&] { ++ran; }});
  EXPECT_EQ(error_of([&] { engine.wait(refused); }).code(), Code::kIo);
  EXPECT_EQ(ran, 1);
  // Nothing to move is done, and finishes too; one that is alone is nobody else's.
  const auto alone = engine.read(file, 0, {}, {[&] { ++ran; }, true});
  EXPECT_EQ(engine.wait_all(), 0);
  engine.wait(alone);
  EXPECT_EQ(ran, 2);
}

TEST(IoEngineOptions, AreChecked) {
  const auto code = [](const EngineOptions& options) {
    return error_of([&] { Engine engine(options); }).code();
  };
  EXPECT_EQ(code({{}, 0}), Code::kInvalidArgument);
  EXPECT_EQ(code({{}, 65}), Code::kInvalidArgument);
  EXPECT_EQ(code({{.depth = 0}}), Code::kInvalidArgument);
  EXPECT_EQ(backend_of_name("libaio"), BackendKind::kLibaio);
  EXPECT_EQ(backend_of_name("posix"), std::nullopt);
  EXPECT_NE(Engine().backend(), BackendKind::kBest);
  const TempFolder folder;
  const File file(folder / "f", Access::kCreate);
  Engine engine;
  std::byte one{};
  EXPECT_EQ(error_of([&] { engine.read(file, -1, {&one, 1}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] {
              engine.read(file, INT64_MAX, {&one, 1});
            }).code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace ds::io::test
