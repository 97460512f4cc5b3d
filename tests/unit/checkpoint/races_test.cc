// What other processes do between two calls of a save, and file systems that lack a call: this
// program defines the calls anew, so that each such moment comes when a test wants it.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <set>
#include <stdexcept>

#include "checkpoint/run_id.h"
#include "fresh_seed.h"
#include "unit/checkpoint/support.h"

namespace ds::test {
namespace {

// Called before a rename: 0 to let it happen, or the error that it fails with.
using RenameHook = std::function<int(const fs::path& from, const fs::path& to, bool exchange)>;
RenameHook& rename_hook() {
  static RenameHook hook;
  return hook;
}

int& flock_error() {
  static int error = 0;
  return error;
}

bool& entropy_fails() {
  static bool fails = false;
  return fails;
}

int rename_as_told(int from_folder, const char* from, int to_folder, const char* to,
                   unsigned flags) {
  if (const RenameHook hook = rename_hook()) {
    rename_hook() = nullptr;  // what the hook renames itself is no concern of it
    const int error = hook(from, to, flags == RENAME_EXCHANGE);
    rename_hook() = hook;
    if (error != 0) {
      errno = error;
      return -1;
    }
  }
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

}  // namespace
}  // namespace ds::test

extern "C" {
int rename(const char* from, const char* to) noexcept {
  return ds::test::rename_as_told(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  return ds::test::rename_as_told(from_folder, from, to_folder, to, flags);
}
int flock(int fd, int operation) noexcept {
  if (ds::test::flock_error() != 0) {
    errno = ds::test::flock_error();
    return -1;
  }
  return static_cast<int>(::syscall(SYS_flock, fd, operation));
}
int getentropy(void* bytes, size_t count) {
  if (ds::test::entropy_fails()) {
    errno = ENOSYS;
    return -1;
  }
  return ::syscall(SYS_getrandom, bytes, count, 0) == static_cast<long>(count) ? 0 : -1;
}
}

namespace ds::test {
namespace {

CheckpointWriterOptions options_for(const fs::path& save, const std::string& tag, bool exchange) {
  CheckpointWriterOptions options;
  options.folder = save;
  options.tag = tag;
  options.exchange = exchange;
  return options;
}

// A folder with the checkpoints "t" of step 1 and "spare" of step 7, which latest names.
class Races : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    write("t", 1);
    write("spare", 7);
  }
  void TearDown() override {
    rename_hook() = nullptr;
    flock_error() = 0;
  }
  void write(const std::string& tag, int64_t step) const {
    save_sample(options_for(save_, tag, GetParam()), ds::run_seed(), step);
  }
  void expect_step(const std::string& tag, int64_t step) const {
    const CheckpointReader reader = CheckpointReader::open(save_, tag);
    EXPECT_EQ(reader.manifest().counters.global_steps, step);
    expect_sample(reader, ds::run_seed());
  }
  // Calls `act` before the first rename for which `which` holds; it gives the error.
  template <class Which, class Act>
  void once(Which which, Act act) {
    happened_ = false;
    rename_hook() = [this, which, act](const fs::path& from, const fs::path& to, bool exchange) {
      if (happened_ || !which(from, to, exchange)) return 0;
      happened_ = true;
      return act();
    };
  }
  // As another process that saves "t" would.
  void put_spare_at(const fs::path& place) const { fs::copy(save_ / "spare", place); }

  const TempFolder folder_;
  const fs::path save_ = folder_.path() / "save";
  bool happened_ = false;
};
INSTANTIATE_TEST_SUITE_P(Ways, Races, ::testing::Bool(), [](const auto& exchange) {
  return exchange.param ? "Exchange" : "Aside";
});

// Nobody knows then whether a leftover's writer lives, so that leftovers stay.
TEST_P(Races, FileSystemsWithoutLocksTakeCheckpoints) {
  DS_SEED_TRACE();
  fs::create_directory(save_ / ".t.tmp.1.0");
  for (const int error : {EBADF, ENOLCK, ENOTSUP, ENOSYS}) {
    SCOPED_TRACE(::testing::Message() << "error " << error);
    flock_error() = error;
    write("t", 10 + error);
    flock_error() = 0;
    expect_step("t", 10 + error);
    EXPECT_EQ(read_latest(save_), "t");
    EXPECT_EQ(leftovers(save_), (std::vector<std::string>{".t.tmp.1.0"}));
  }
  write("t", 2);
  EXPECT_TRUE(leftovers(save_).empty());
}

TEST_P(Races, ALockThatCannotBeHadIsAnError) {
  flock_error() = EWOULDBLOCK;  // whoever looks for leftovers takes each new folder for one
  const Error error = error_of([&] { write("t", 2); });
  flock_error() = 0;
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_NE(error.message().find("temporary folder for 't'"), std::string::npos) << error.message();
  expect_step("t", 1);
}

TEST_P(Races, ACheckpointThatGoesWhileItIsReplacedIsNotMissed) {
  DS_SEED_TRACE();
  // Just before it is exchanged, or moved aside.
  once(
      [&](const fs::path& from, const fs::path& to, bool exchange) {
        return exchange || (from == save_ / "t" && to.filename().string()[0] == '.');
      },
      [&] {
        fs::remove_all(save_ / "t");
        return 0;
      });
  write("t", 2);
  EXPECT_TRUE(happened_);
  expect_step("t", 2);
  EXPECT_EQ(read_latest(save_), "t");
  EXPECT_TRUE(leftovers(save_).empty());
}

// Without an exchange there is a moment in which the tag has no folder.
TEST_P(Races, AnotherCheckpointThatComesInBetweenIsReplacedToo) {
  if (GetParam()) GTEST_SKIP() << "an exchange leaves no such moment";
  DS_SEED_TRACE();
  bool aside = false;
  rename_hook() = [&](const fs::path& from, const fs::path& to, bool) {
    if (from == save_ / "t") {
      aside = true;
    } else if (aside && to == save_ / "t" && !happened_) {
      happened_ = true;
      put_spare_at(to);
    }
    return 0;
  };
  write("t", 2);
  EXPECT_TRUE(happened_);
  expect_step("t", 2);
  EXPECT_TRUE(leftovers(save_).empty());
}

TEST_P(Races, ANameForTheOldOneThatIsTakenMeanwhileIsLeftAlone) {
  if (GetParam()) GTEST_SKIP() << "an exchange needs no such name";
  DS_SEED_TRACE();
  fs::path taken;
  rename_hook() = [&](const fs::path& from, const fs::path& to, bool) {
    if (from == save_ / "t" && taken.empty()) {
      taken = to;
      fs::create_directory(to);
      spill(to / "notes.txt", "mine");
    }
    return 0;
  };
  write("t", 2);
  rename_hook() = nullptr;
  expect_step("t", 2);
  EXPECT_EQ(slurp(taken / "notes.txt"), "mine");
  EXPECT_EQ(leftovers(save_).size(), 1U);
}

// Where the file system cannot exchange two folders the old one is moved aside first; what else
// goes wrong is an error.
TEST_P(Races, AnExchangeIsNotNeeded) {
  DS_SEED_TRACE();
  int64_t step = 1;
  for (const int error : {EINVAL, ENOSYS, ENOTSUP, EPERM}) {
    SCOPED_TRACE(::testing::Message() << "error " << error);
    rename_hook() = [&](const fs::path&, const fs::path&, bool exchange) {
      return exchange ? error : 0;
    };
    write("t", ++step);
    rename_hook() = nullptr;
    expect_step("t", step);
    EXPECT_TRUE(leftovers(save_).empty());
  }
  if (!GetParam()) return;
  rename_hook() = [](const fs::path&, const fs::path&, bool exchange) {
    return exchange ? EIO : 0;
  };
  const Error error = error_of([&] { write("t", 9); });
  rename_hook() = nullptr;
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_NE(error.message().find("cannot replace"), std::string::npos) << error.message();
  expect_step("t", step);
}

// A disk that fails when the new one is to take the old one's place: the old one comes back, and
// the error is the first.
TEST_P(Races, AFailureInBetweenBringsTheOldOneBack) {
  if (GetParam()) GTEST_SKIP() << "an exchange leaves nothing in between";
  DS_SEED_TRACE();
  for (const bool back : {true, false}) {
    SCOPED_TRACE(back ? "it can be put back" : "it cannot be put back");
    bool aside = false;
    rename_hook() = [&, back](const fs::path& from, const fs::path& to, bool) {
      if (from == save_ / "t") aside = true;
      if (!aside || to != save_ / "t") return 0;
      const bool old = from.filename().string().find(".old.") != std::string::npos;
      return !old ? EIO : back ? 0 : EACCES;
    };
    const Error error = error_of([&] { write("t", 2); });
    rename_hook() = nullptr;
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_NE(error.message().find(std::generic_category().message(EIO)), std::string::npos)
        << error.message();
    EXPECT_EQ(fs::exists(save_ / "t"), back);
    expect_step("t", 1);  // also from where it was put aside
    write("other", 3);    // puts it back
    EXPECT_TRUE(fs::exists(save_ / "t"));
    expect_step("t", 1);
    EXPECT_TRUE(leftovers(save_).empty());
  }
}

TEST_P(Races, LatestIsWrittenThoughAnotherWriterTookTheFolderOver) {
  DS_SEED_TRACE();
  once([](const fs::path& from, const fs::path&, bool) { return from.filename() == "latest.next"; },
       [&] {
         fs::remove_all(save_ / "t");
         put_spare_at(save_ / "t");
         return 0;
       });
  write("t", 2);
  EXPECT_TRUE(happened_);
  EXPECT_EQ(read_latest(save_), "t");
}

TEST_P(Races, ALatestThatCannotBeReplacedIsToldWithTheCheckpointComplete) {
  DS_SEED_TRACE();
  once([](const fs::path& from, const fs::path&, bool) { return from.filename() == "latest.next"; },
       [] { return EACCES; });
  const Error error = error_of([&] { write("t", 2); });
  EXPECT_NE(error.message().find("the checkpoint is complete"), std::string::npos)
      << error.message();
  EXPECT_EQ(read_latest(save_), "spare");
  expect_step("t", 2);
}

// Where the system gives none, for instance in a sandbox, the standard library's numbers serve.
TEST(RunId, DiffersWithAndWithoutTheSystemsRandomNumbers) {
  std::set<std::string> ids;
  for (const bool fails : {false, true}) {
    entropy_fails() = fails;
    for (int i = 0; i < 20; ++i) {
      const std::string id = make_run_id();
      EXPECT_EQ(id.size(), 32u);
      EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
      ids.insert(id);
    }
    entropy_fails() = false;
  }
  EXPECT_EQ(ids.size(), 40u);
}

}  // namespace
}  // namespace ds::test
