// Crashes and bad environments: killed writers, full disks, read-only folders, two writers at once,
// leftovers of earlier runs. Whatever happens, the newest complete checkpoint loads bit for bit.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <thread>

#include "fresh_seed.h"
#include "unit/checkpoint/support.h"

namespace ds::test {
namespace {

CheckpointWriterOptions options_for(const fs::path& save, const std::string& tag,
                                    bool exchange = true) {
  CheckpointWriterOptions options;
  options.folder = save;
  options.tag = tag;
  options.blob.chunk_bytes = 4096;
  options.exchange = exchange;
  return options;
}

// Runs `fn` in a forked child; its result is the child's exit code.
pid_t spawn(const std::function<int()>& fn) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    int code = 99;
    try {
      code = fn();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    ::_exit(code);
  }
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Steps rotate over a tag that is replaced again and again and tags that are new.
std::string tag_of(int64_t step) {
  return step % 2 == 0 ? "rolling" : "step" + std::to_string(step);
}

void kill_repeatedly(bool exchange, int rounds) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  int64_t next = 1;
  int in_the_middle = 0;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    int pipe_ends[2];
    ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
    const pid_t child = spawn([&] {
      for (int64_t step = next;; ++step) {
        save_sample(options_for(save, tag_of(step), exchange), ds::run_seed(), step);
        if (::write(pipe_ends[1], &step, sizeof step) != sizeof step) return 1;
      }
    });
    ::close(pipe_ends[1]);
    // Killed anywhere in the first saves; the first one counts too.
    std::this_thread::sleep_for(std::chrono::microseconds(rng() % 15'000));
    ::kill(child, SIGKILL);
    ASSERT_EQ(wait_for(child), -SIGKILL);
    int64_t committed = next - 1;
    for (int64_t step; ::read(pipe_ends[0], &step, sizeof step) == sizeof step;) committed = step;
    ::close(pipe_ends[0]);
    in_the_middle += fs::exists(save) && !leftovers(save).empty() ? 1 : 0;

    if (committed == 0 && (!fs::exists(save) || list_tag_folders(save).empty())) continue;
    const LatestCheckpoint latest = open_latest_valid(save);
    EXPECT_TRUE(latest.skipped.empty());
    const int64_t step = latest.reader.manifest().counters.global_steps;
    // At least what was reported as saved; one more if the kill came before the report.
    EXPECT_GE(step, committed);
    EXPECT_LE(step, committed + 1);
    EXPECT_EQ(latest.reader.tag(), tag_of(step));
    expect_sample(latest.reader, ds::run_seed());
    for (const TagFolder& tag : list_tag_folders(save)) {
      expect_sample(CheckpointReader::open(save, tag.tag), ds::run_seed());
    }
    next = step + 1;
  }
  EXPECT_GT(in_the_middle, rounds / 5) << "the kills did not hit saves";
  // The next save cleans up after all of them.
  save_sample(options_for(save, "last"), ds::run_seed(), next);
  EXPECT_TRUE(leftovers(save).empty());
  expect_sample(CheckpointReader::open(save), ds::run_seed());
}

TEST(Crash, KilledFiftyTimesTheLatestCheckpointLoads) { kill_repeatedly(true, 50); }
TEST(Crash, KilledFiftyTimesWithoutAtomicExchange) { kill_repeatedly(false, 50); }

// Every state that a crash can leave, made by hand.
TEST(Crash, LeftoversOfEveryKindAreHandled) {
  DS_SEED_TRACE();
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  save_sample(options_for(save, "rolling"), ds::run_seed(), 1);

  // Died while writing blobs, and just before the rename.
  fs::create_directory(save / ".rolling.tmp.1.0");
  spill(save / ".rolling.tmp.1.0/data-00000.bin", "half a blo");
  fs::copy(save / "rolling", save / ".next.tmp.1.0");
  // Died between exchange and removal: nothing is missing.
  fs::copy(save / "rolling", save / ".rolling.tmp.1.1");
  // Somebody's folder of another name, and one with a file that is no checkpoint's.
  fs::create_directory(save / ".git");
  fs::create_directory(save / ".x.tmp.1.0");
  spill(save / ".x.tmp.1.0/notes.txt", "mine");
  // Names that are nearly those of leftovers.
  const std::vector<std::string> foreign = {".x.tmp.1.", ".x.tmp.111111111111111111111.0",
                                            ".x.tmp.1a.0"};
  for (const std::string& name : foreign) fs::create_directory(save / name);
  expect_sample(open_latest_valid(save).reader, ds::run_seed());
  // Died after moving the old one aside: the old one still answers to its tag.
  fs::rename(save / "rolling", save / ".rolling.old.1.0");
  EXPECT_EQ(CheckpointReader::open(save).tag(), "rolling");
  EXPECT_EQ(CheckpointReader::open(save, "rolling").tag(), "rolling");
  expect_sample(open_latest_valid(save).reader, ds::run_seed());

  save_sample(options_for(save, "other"), ds::run_seed(), 2);
  EXPECT_TRUE(fs::exists(save / "rolling/manifest.dsm"));
  expect_sample(CheckpointReader::open(save, "rolling"), ds::run_seed());
  auto left = leftovers(save);
  std::sort(left.begin(), left.end());
  std::vector<std::string> kept = {".git", ".x.tmp.1.0"};
  kept.insert(kept.end(), foreign.begin(), foreign.end());
  std::sort(kept.begin(), kept.end());
  EXPECT_EQ(left, kept);
  EXPECT_FALSE(fs::exists(save / "next")) << "what was never put into its place stays away";
  EXPECT_EQ(slurp(save / ".x.tmp.1.0/notes.txt"), "mine");

  // An old copy whose tag exists again is not needed.
  fs::copy(save / "rolling", save / ".rolling.old.1.3");
  save_sample(options_for(save, "other"), ds::run_seed(), 3);
  EXPECT_FALSE(fs::exists(save / ".rolling.old.1.3"));
}

// Of whatever a save of several ranks had made when it died.
TEST(Crash, LeftoversGoWithEveryFileThatASaveMakes) {
  DS_SEED_TRACE();
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  save_sample(options_for(save, "t"), ds::run_seed(), 1);
  for (const char* name : {"manifest.dsm", "latest.next", "data-00000.bin", "data-00012.bin",
                           "part-00001.open", "part-00002.done", "part-00003.failed"}) {
    const fs::path left = save / ".next.tmp.1.0";
    fs::create_directory(left);
    spill(left / name, "x");
    save_sample(options_for(save, "t"), ds::run_seed(), 2);
    EXPECT_FALSE(fs::exists(left)) << name;
  }
}

TEST(Crash, ForeignFilesInAReplacedCheckpointAreKept) {
  DS_SEED_TRACE();
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  save_sample(options_for(save, "t"), ds::run_seed(), 1);
  spill(save / "t/notes.txt", "mine");
  save_sample(options_for(save, "t"), ds::run_seed(), 2);
  expect_sample(CheckpointReader::open(save), ds::run_seed());
  ASSERT_EQ(leftovers(save).size(), 1u);
  EXPECT_EQ(slurp(save / leftovers(save)[0] / "notes.txt"), "mine");
}

TEST(Crash, WhatIsNoCheckpointIsNotReplaced) {
  DS_SEED_TRACE();
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  fs::create_directories(save / "t");
  save_sample(options_for(save, "t"), ds::run_seed(), 1);  // an empty folder is nobody's
  expect_sample(CheckpointReader::open(save), ds::run_seed());
  fs::create_directories(save / "mine");
  spill(save / "mine/data-00000.bin", "not a checkpoint's");
  const Error error = error_of([&] { save_sample(options_for(save, "mine"), ds::run_seed(), 2); });
  EXPECT_EQ(error.code(), Code::kIo);
  for (const char* part : {"mine", "no checkpoint", "data-00000.bin", "manifest.dsm"}) {
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  }
  EXPECT_EQ(slurp(save / "mine/data-00000.bin"), "not a checkpoint's");
  EXPECT_TRUE(leftovers(save).empty());
  // One that appears while the checkpoint is being written is not replaced, either.
  CheckpointWriter writer(options_for(save, "late"));
  writer.part().set_int("a", 1);
  fs::create_directories(save / "late");
  spill(save / "late/data-00000.bin", "not a checkpoint's");
  EXPECT_EQ(error_of([&] { writer.commit(); }).code(), Code::kIo);
  EXPECT_EQ(slurp(save / "late/data-00000.bin"), "not a checkpoint's");
}

TEST(Crash, RemovalSaysWhatKeepsAFolder) {
  const TempFolder folder;
  const auto made = [&](const char* name) {
    fs::create_directories(folder.path() / name);
    spill(folder.path() / name / "manifest.dsm", "x");
    return folder.path() / name;
  };
  std::string why;
  EXPECT_TRUE(remove_checkpoint_folder(made("whole"), &why));
  EXPECT_TRUE(remove_checkpoint_folder(folder.path() / "absent", &why));
  spill(made("foreign") / "notes.txt", "mine");
  EXPECT_FALSE(remove_checkpoint_folder(folder.path() / "foreign", &why));
  EXPECT_EQ(why, "it holds files that are not a checkpoint's");
  // A link is no folder of ours, wherever it leads.
  fs::create_directory_symlink(made("target"), folder.path() / "link");
  EXPECT_FALSE(remove_checkpoint_folder(folder.path() / "link", &why));
  EXPECT_TRUE(fs::exists(folder.path() / "target/manifest.dsm"));

  const fs::path locked = made("locked");
  ::chmod(folder.path().c_str(), 0755);
  ::chmod(locked.c_str(), 0555);
  const int code = wait_for(spawn([&] {
    // The superuser may write anywhere: become somebody else.
    if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return 3;
    if (remove_checkpoint_folder(locked, &why)) return 1;
    return why.find("cannot remove manifest.dsm: Permission denied") != std::string::npos ? 0 : 2;
  }));
  EXPECT_EQ(code, 0);
  ::chmod(locked.c_str(), 0755);
}

TEST(Crash, AFullDiskLeavesTheOldCheckpointAndNoRubbish) {
  DS_SEED_TRACE();
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  save_sample(options_for(save, "t"), ds::run_seed(), 1);
  // The limit hits the blob, then (with room for the blob's 77 KiB) nothing, then the manifest.
  for (const rlim_t limit : {rlim_t{10'000}, rlim_t{60'000}, rlim_t{1'000}, rlim_t{0}}) {
    const int code = wait_for(spawn([&] {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit size{limit, limit};
      ::setrlimit(RLIMIT_FSIZE, &size);
      try {
        save_sample(options_for(save, "t"), ds::run_seed(), 2);
      } catch (const Error& error) {
        return error.code() == Code::kIo &&
                       error.message().find("data-00000.bin") != std::string::npos
                   ? 0
                   : 2;
      }
      return 1;
    }));
    EXPECT_EQ(code, 0) << limit;
    EXPECT_TRUE(leftovers(save).empty());
    EXPECT_EQ(CheckpointReader::open(save).manifest().counters.global_steps, 1);
    expect_sample(CheckpointReader::open(save), ds::run_seed());
  }
  // Only the manifest does not fit.
  const int code = wait_for(spawn([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    CheckpointWriter writer(options_for(save, "t"));
    writer.part().set_int("a", 1);
    const rlimit size{20, 20};
    ::setrlimit(RLIMIT_FSIZE, &size);
    try {
      writer.commit();
    } catch (const Error& error) {
      return error.message().find("manifest.dsm") != std::string::npos ? 0 : 2;
    }
    return 1;
  }));
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(leftovers(save).empty());
  expect_sample(CheckpointReader::open(save), ds::run_seed());
}

TEST(Crash, FoldersThatCannotBeWrittenAreClearErrors) {
  DS_SEED_TRACE();
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  save_sample(options_for(save, "t"), ds::run_seed(), 1);
  ::chmod(folder.path().c_str(), 0755);
  ::chmod(save.c_str(), 0555);
  ::chmod((save / "t").c_str(), 0555);
  const int code = wait_for(spawn([&] {
    // The superuser may write anywhere: become somebody else.
    if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return 3;
    expect_sample(CheckpointReader::open(save), ds::run_seed());
    if (::testing::Test::HasFailure()) return 4;
    try {
      save_sample(options_for(save, "t"), ds::run_seed(), 2);
    } catch (const Error& error) {
      return error.code() == Code::kIo && error.message().find(save.string()) != std::string::npos
                 ? 0
                 : 2;
    }
    return 1;
  }));
  EXPECT_EQ(code, 0);
  ::chmod(save.c_str(), 0755);
  ::chmod((save / "t").c_str(), 0755);
  expect_sample(CheckpointReader::open(save), ds::run_seed());

  spill(folder.path() / "file", "x");
  EXPECT_EQ(error_of([&] { save_sample(options_for(folder.path() / "file", "t"), 1, 1); }).code(),
            Code::kIo);
  spill(save / "blocked", "a file where the checkpoint should go");
  const Error blocked = error_of([&] { save_sample(options_for(save, "blocked"), 1, 2); });
  EXPECT_EQ(blocked.code(), Code::kIo);
  EXPECT_NE(blocked.message().find("blocked"), std::string::npos) << blocked.message();
  EXPECT_TRUE(leftovers(save).empty());
}

// Several processes and threads save the same and different tags; everything stays loadable.
TEST(Crash, WritersAtOnceDoNotDisturbEachOther) {
  DS_SEED_TRACE();
  for (const bool exchange : {true, false}) {
    const TempFolder folder;
    const fs::path save = folder.path() / "save";
    const auto work = [&](int id) {
      for (int i = 0; i < 8; ++i) {
        save_sample(options_for(save, "same", exchange), ds::run_seed(), 10 * id + i);
        save_sample(options_for(save, "own" + std::to_string(id), exchange), ds::run_seed(), i);
      }
    };
    const pid_t child = spawn([&] {
      work(3);
      return 0;
    });
    {
      std::vector<std::string> errors(2);
      std::vector<std::thread> threads;
      for (int id = 1; id <= 2; ++id) {
        threads.emplace_back([&, id] {
          try {
            work(id);
          } catch (const Error& error) {
            errors[static_cast<size_t>(id - 1)] = error.message();
          }
        });
      }
      for (std::thread& t : threads) t.join();
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
    EXPECT_EQ(wait_for(child), 0);
    EXPECT_TRUE(leftovers(save).empty());
    EXPECT_EQ(list_tag_folders(save).size(), 4u);
    for (const TagFolder& tag : list_tag_folders(save)) {
      expect_sample(CheckpointReader::open(save, tag.tag), ds::run_seed());
    }
    expect_sample(CheckpointReader::open(save), ds::run_seed());
  }
}

// Reading while the tag is replaced gives one whole checkpoint or another, never a mixture.
TEST(Crash, ReadersSeeWholeCheckpointsWhileATagIsReplaced) {
  DS_SEED_TRACE();
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  save_sample(options_for(save, "t"), ds::run_seed(), 0);
  const pid_t child = spawn([&] {
    for (int step = 1; step <= 40; ++step)
      save_sample(options_for(save, "t"), ds::run_seed(), step);
    return 0;
  });
  int64_t last = 0;
  int reads = 0;
  for (; last < 40; ++reads) {
    const auto reader = CheckpointReader::open(save, "t");
    EXPECT_GE(reader.manifest().counters.global_steps, last);
    last = reader.manifest().counters.global_steps;
    expect_sample(reader, ds::run_seed());
    if (HasFailure()) break;
  }
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_GT(reads, 1);
}

TEST(Crash, ALiveWritersFolderIsNotCleanedAway) {
  DS_SEED_TRACE();
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  CheckpointWriter slow(options_for(save, "slow"));
  const std::string bytes(10, 'x');
  slow.part().add_tensor(make_meta("w", TensorKind::kModel, DType::kUInt8, {10}), bytes_of(bytes));
  save_sample(options_for(save, "quick"), ds::run_seed(), 1);
  ASSERT_EQ(leftovers(save).size(), 1u);
  EXPECT_EQ(leftovers(save)[0].rfind(".slow.tmp.", 0), 0u) << leftovers(save)[0];
  slow.commit();
  EXPECT_TRUE(CheckpointReader::open(save, "slow").verify_all().empty());
  EXPECT_TRUE(leftovers(save).empty());
}

// Locks are open descriptors: a run that saves for weeks must not collect them.
TEST(Crash, SavesGiveTheirDescriptorsBack) {
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  const auto open_now = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const CheckpointWriter slow(options_for(save, "slow"));  // its folder cannot be locked by others
  save_sample(options_for(save, "t"), ds::run_seed(), 0);
  const auto before = open_now();
  for (const bool exchange : {true, false}) {
    auto options = options_for(save, "t");
    options.exchange = exchange;
    for (int64_t step = 1; step <= 3; ++step) save_sample(options, ds::run_seed(), step);
    EXPECT_EQ(open_now(), before) << "exchange " << exchange;
  }
}

}  // namespace
}  // namespace ds::test
