// The order in which a save makes things durable: files before the folder that names them, the
// folder before it gets its name, `latest` before it replaces the old one. Recorded from the calls
// that the library makes, which this program defines anew.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "training_world.h"

namespace ds::properties {
namespace {

std::mutex calls_mutex;
std::vector<std::string> calls;
std::atomic<bool> recording{false};

void record(std::string call) {
  if (!recording) return;
  const std::lock_guard lock(calls_mutex);
  calls.push_back(std::move(call));
}

std::string path_of(int fd) {
  char path[4096];
  const ssize_t n = ::readlink(str_cat("/proc/self/fd/", fd).c_str(), path, sizeof path);
  return {path, static_cast<size_t>(std::max<ssize_t>(n, 0))};
}

}  // namespace
}  // namespace ds::properties

extern "C" {
int fsync(int fd) {
  ds::properties::record("sync " + ds::properties::path_of(fd));
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
int rename(const char* from, const char* to) {
  ds::properties::record(std::string("rename ") + from + " " + to);
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  ds::properties::record(std::string("rename ") + from + " " + to);
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
}

namespace ds::properties {
namespace {

// The place of the first call at or after `from` that begins and ends so; the number of calls when
// there is none.
size_t find_call(const std::string& begin, const std::string& end, size_t from = 0) {
  for (size_t i = from; i < calls.size(); ++i) {
    if (calls[i].rfind(begin, 0) == 0 && calls[i].size() >= end.size() &&
        calls[i].compare(calls[i].size() - end.size(), end.size(), end) == 0) {
      return i;
    }
  }
  ADD_FAILURE() << "no call " << begin << " ... " << end;
  return calls.size();
}

void save_and_check(Engine& engine, const std::string& folder, bool again) {
  calls.clear();
  recording = true;
  engine.save(folder, "a");
  engine.wait_for_save();
  recording = false;
  // The first call that puts the folder in its place, whose name it gets.
  const size_t named = find_call("rename ", " " + folder + "/a");
  std::string temporary = calls.at(named).substr(7);
  temporary.resize(temporary.find(' '));
  const size_t blob = find_call("sync ", temporary + "/data-00000.bin"),
               manifest = find_call("sync ", temporary + "/manifest.dsm"),
               next = find_call("sync ", temporary + "/latest.next"),
               inside = find_call("sync ", temporary);
  EXPECT_LT(blob, manifest) << "a manifest is there when what it names is";
  EXPECT_LT(manifest, inside);
  EXPECT_LT(next, inside) << "latest has its text before it has its place";
  EXPECT_LT(inside, named) << "the entries of a folder are durable before its name";
  const size_t outside = find_call("sync ", folder, named);
  const size_t latest = find_call("rename ", " " + folder + "/latest");
  EXPECT_LT(outside, latest) << "latest names what is there";
  EXPECT_LT(latest, find_call("sync ", folder, latest));
  if (!again) {
    EXPECT_LT(named, outside);
  }
}

TEST(Durability, ASaveSyncsBeforeItRenames) {
  for (const bool decoupled : {false, true}) {
    SCOPED_TRACE(decoupled);
    const Folder folder;
    const std::string saves = fs::canonical(folder.path()).string();
    const auto engine = make_engine(
        with(base_config(), {{"checkpoint", {{"writer", {{"decoupled", decoupled}}}}}}));
    save_and_check(*engine, saves, false);
    engine->train_batch();
    save_and_check(*engine, saves, true);  // replaces the tag
  }
}

}  // namespace
}  // namespace ds::properties
