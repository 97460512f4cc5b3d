// The queue: every byte arrives whatever the alignment, the depth and the way it takes; failures
// name their place and leave other requests alone; a queue may go while work is under way.
#include "io/queue.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>

#include "fresh_seed.h"
#include "io/buffer.h"
#include "unit/io/support.h"

namespace ds::io::test {
namespace {

struct Way {
  const char* name;
  bool direct;
  BackendKind backend;
  const char* parent = nullptr;
  bool single_submit = false;
  bool overlap = true;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class IoQueue : public ::testing::TestWithParam<Way> {
 protected:
  static fs::path parent() {
    return GetParam().parent != nullptr ? fs::path(GetParam().parent) : fs::temp_directory_path();
  }
  static QueueOptions options(int depth, int64_t block) {
    return {.depth = depth,
            .block_bytes = block,
            .threads = 3,
            .backend = GetParam().backend,
            .single_submit = GetParam().single_submit,
            .overlap = GetParam().overlap};
  }
  File open(Access access) { return File(path_, access, GetParam().direct); }
  void SetUp() override {
    if (!usable(GetParam().backend)) GTEST_SKIP() << "this system does not allow it";
  }

  TempFolder folder_{parent()};
  const fs::path path_ = folder_ / "file";
};

INSTANTIATE_TEST_SUITE_P(
    Ways, IoQueue,
    ::testing::Values(Way{"Direct", true, BackendKind::kUring},
                      Way{"Libaio", true, BackendKind::kLibaio},
                      Way{"DirectThreads", true, BackendKind::kThreads},
                      Way{"Cached", false, BackendKind::kUring},
                      Way{"CachedThreads", false, BackendKind::kThreads},
                      Way{"SharedMemory", true, BackendKind::kUring, "/dev/shm"},
                      Way{"OneByOne", true, BackendKind::kUring, nullptr, true, false},
                      Way{"InRounds", true, BackendKind::kUring, nullptr, false, false},
                      Way{"LibaioInRounds", true, BackendKind::kLibaio, nullptr, true, false}),
    [](const auto& given) { return std::string(given.param.name); });

TEST_P(IoQueue, MovesEveryByteOfRandomRequests) {
  SCOPED_TRACE("DS_TEST_SEED=" + std::to_string(ds::run_seed()));
  std::mt19937_64 rng(ds::run_seed());
  constexpr int64_t kSize = 3'000'000;
  Buffer content(kSize), back(kSize + kAlignment);
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    fill_random(content.bytes(), rng);
    const auto size = static_cast<int64_t>(rng() % kSize);
    // Pieces that begin anywhere, at multiples of the alignment, or both.
    const auto cuts = [&](bool even) {
      std::vector<int64_t> out{0, size};
      for (int i = 0; i < 12; ++i) {
        const auto at = static_cast<int64_t>(rng() % static_cast<uint64_t>(size + 1));
        out.push_back(even || rng() % 2 == 0 ? at / kAlignment * kAlignment : at);
      }
      std::sort(out.begin(), out.end());
      return out;
    };
    File file = open(Access::kCreate);
    {
      Queue queue(options(1 + static_cast<int>(rng() % 9), kAlignment << (rng() % 6)));
      if (round % 2 == 0) file.reserve(0, size);
      const std::vector<int64_t> at = cuts(round % 3 == 0);
      std::vector<Queue::Ticket> tickets;
      for (size_t i = 0; i + 1 < at.size(); ++i) {
        const auto n = static_cast<size_t>(at[i + 1] - at[i]);
        tickets.push_back(
            queue.write(file, at[i], content.bytes().subspan(static_cast<size_t>(at[i]), n)));
      }
      std::shuffle(tickets.begin(), tickets.end(), rng);
      for (const Queue::Ticket ticket : tickets) {
        if (rng() % 3 > 0) queue.wait(ticket);
        if (rng() % 3 == 0) queue.done(ticket);
      }
      queue.wait_all();
      for (const Queue::Ticket ticket : tickets) EXPECT_TRUE(queue.done(ticket));
    }
    ASSERT_EQ(file.size(), size);
    std::vector<std::byte> plain(static_cast<size_t>(size));
    file.read_at(0, plain);
    ASSERT_EQ(std::memcmp(plain.data(), content.data(), plain.size()), 0);

    Queue queue(options(1 + static_cast<int>(rng() % 9), kAlignment << (rng() % 6)));
    std::memset(back.data(), 0, static_cast<size_t>(back.size()));
    const std::vector<int64_t> at = cuts(round % 3 == 0);
    // Memory that is aligned well, just enough, or not at all.
    const size_t shift = std::array<size_t, 3>{
        0, static_cast<size_t>(file.memory_alignment()) % kAlignment, 64}[rng() % 3];
    for (size_t i = 0; i + 1 < at.size(); ++i) {
      queue.read(file, at[i],
                 back.bytes().subspan(static_cast<size_t>(at[i]) + shift,
                                      static_cast<size_t>(at[i + 1] - at[i])));
    }
    queue.wait_all();
    ASSERT_EQ(std::memcmp(back.data() + shift, content.data(), static_cast<size_t>(size)), 0);
  }
}

TEST_P(IoQueue, AFileThatEndsEarlyIsSaidAndOtherRequestsGoOn) {
  std::mt19937_64 rng(1);
  Buffer content(1 << 20), a(1 << 20), b(1 << 20);
  fill_random(content.bytes(), rng);
  constexpr size_t kSize = 200'100;
  File file = open(Access::kCreate);
  file.write_at(0, content.bytes().first(kSize));
  Queue queue(options(4, 65536));
  const auto whole = queue.read(file, 0, a.bytes());
  const auto part = queue.read(file, 4096, b.bytes().first(150'000));
  queue.wait(part);
  EXPECT_EQ(std::memcmp(b.data(), content.data() + 4096, 150'000), 0);
  const Error error = error_of([&] { queue.wait(whole); });
  EXPECT_EQ(error.code(), Code::kCorrupt);
  EXPECT_NE(error.message().find(path_.string()), std::string::npos) << error.message();
  EXPECT_NE(error.message().find("ends at byte 200100"), std::string::npos) << error.message();
  EXPECT_NO_THROW(queue.wait(whole)) << "a failure is told once";
  EXPECT_NO_THROW(queue.wait_all());
}

TEST_P(IoQueue, AFailedWriteNamesFileAndOffset) {
  Buffer content(1 << 20);
  std::memset(content.data(), 1, 1 << 20);
  { open(Access::kCreate).write_at(0, content.bytes()); }
  File file = open(Access::kRead);
  Queue queue(options(2, 65536));
  queue.write(file, 8192, content.bytes().first(300'000));
  const auto reading = queue.read(file, 0, content.bytes());
  const Error error = error_of([&] { queue.wait_all(); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_NE(error.message().find(path_.string() + " (65536 bytes at 8192): "), std::string::npos)
      << error.message();
  EXPECT_NO_THROW(queue.wait(reading));
}

// A write across the size limit is short first, and then refused.
TEST_P(IoQueue, AFullDiskIsAnErrorAndNoHang) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit size{100'000, 100'000};
    ::setrlimit(RLIMIT_FSIZE, &size);
    int code = 1;
    try {
      File file = open(Access::kCreate);
      Buffer content(1 << 20);
      Queue queue(options(4, 65536));
      queue.write(file, 0, content.bytes());
      queue.wait_all();
    } catch (const Error& error) {
      code = error.code() == Code::kIo && error.message().find("file") != std::string::npos ? 0 : 2;
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_LE(fs::file_size(path_), 100'000u);
}

TEST_P(IoQueue, MayGoWhileRequestsAreUnderWay) {
  std::mt19937_64 rng(2);
  constexpr int64_t kSize = 8 << 20;
  Buffer content(kSize), back(kSize);
  fill_random(content.bytes(), rng);
  File file = open(Access::kCreate);
  for (int round = 0; round < 10; ++round) {
    Queue queue(options(3, 65536));
    queue.write(file, 0, content.bytes());
    queue.read(file, 0, back.bytes().first(4096));
    if (round % 2 == 0) queue.done(1);
  }
  // What was written is a prefix of blocks; nothing writes into memory any more.
  const auto size = static_cast<size_t>(file.size());
  std::memset(back.data(), 0, static_cast<size_t>(kSize));
  file.read_at(0, back.bytes().first(size));
  EXPECT_EQ(std::memcmp(back.data(), content.data(), std::min<size_t>(size, 65536)), 0);
}

TEST(IoQueueOptions, AreChecked) {
  const auto code = [](const QueueOptions& options) {
    return error_of([&] { Queue queue(options); }).code();
  };
  EXPECT_EQ(code({.depth = 0}), Code::kInvalidArgument);
  EXPECT_EQ(code({.depth = 5000}), Code::kInvalidArgument);
  EXPECT_EQ(code({.block_bytes = 5000}), Code::kInvalidArgument);
  EXPECT_EQ(code({.threads = 0}), Code::kInvalidArgument);
  const TempFolder folder;
  const File file(folder / "f", Access::kCreate);
  Queue queue;
  EXPECT_EQ(error_of([&] { queue.read(file, -1, {}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { queue.wait(99); }).code(), Code::kInvalidArgument);
  queue.wait(queue.write(file, 0, {}));  // nothing to do is done
}

}  // namespace
}  // namespace ds::io::test
