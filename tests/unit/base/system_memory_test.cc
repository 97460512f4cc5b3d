// What systems say of memory: pretended ones, with control groups of both versions.
#include "base/system_memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

namespace ds {
namespace {

namespace fs = std::filesystem;

class Root {
 public:
  Root() {
    std::string pattern = (fs::temp_directory_path() / "ds-root-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    write("proc/meminfo",
          "MemTotal:       1000 kB\nMemFree:  100 kB\nMemAvailable:    600 kB\n"
          "SwapTotal:  200 kB\nSwapFree:   50 kB\n");
  }
  ~Root() { fs::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  SystemMemory read() const { return read_system_memory(path_); }

 private:
  fs::path path_;
};

constexpr int64_t kKib = 1024;

TEST(SystemMemory, TheMachineAlone) {
  const Root root;
  const SystemMemory memory = root.read();
  EXPECT_EQ(memory.total, 1000 * kKib);
  EXPECT_EQ(memory.available, 600 * kKib);
  EXPECT_EQ(memory.group_limit, -1);
  EXPECT_EQ(free_memory(memory), 650 * kKib);
  const auto ceilings = memory_ceilings(memory);
  ASSERT_FALSE(ceilings.empty());
  EXPECT_EQ(ceilings[0].bytes, 1200 * kKib);
  EXPECT_TRUE(ceilings[0].of_machine);
}

// The smallest limit of the group and those above it; caches of a group are free.
TEST(SystemMemory, ControlGroupsOfVersionTwo) {
  const Root root;
  root.write("proc/self/cgroup", "0::/jobs/one\n");
  root.write("sys/fs/cgroup/jobs/memory.max", "300000\n");
  root.write("sys/fs/cgroup/jobs/one/memory.max", "max\n");
  EXPECT_EQ(root.read().group_limit, 300000);
  EXPECT_EQ(root.read().group_limit_with_swap, 300000 + 200 * kKib);
  root.write("sys/fs/cgroup/jobs/one/memory.max", "250000\n");
  root.write("sys/fs/cgroup/jobs/one/memory.swap.max", "1000\n");
  root.write("sys/fs/cgroup/jobs/one/memory.current", "200000\n");
  root.write("sys/fs/cgroup/jobs/one/memory.stat",
             "anon 90000\ninactive_file 60000\n"
             "active_file 50000\n");
  const SystemMemory memory = root.read();
  EXPECT_EQ(memory.group_limit, 250000);
  EXPECT_EQ(memory.group_limit_with_swap, 251000);
  EXPECT_EQ(memory.group_available, 250000 - 200000 + 110000);
  EXPECT_EQ(free_memory(memory), 160000);
}

TEST(SystemMemory, ControlGroupsOfVersionOne) {
  const Root root;
  root.write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/b\n0::/\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(root.read().group_limit, -1);
  root.write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "400000\n");
  root.write("sys/fs/cgroup/memory/b/memory.memsw.limit_in_bytes", "450000\n");
  root.write("sys/fs/cgroup/memory/b/memory.usage_in_bytes", "390000\n");
  root.write("sys/fs/cgroup/memory/b/memory.stat", "total_inactive_file 5000\n");
  const SystemMemory memory = root.read();
  EXPECT_EQ(memory.group_limit, 400000);
  EXPECT_EQ(memory.group_limit_with_swap, 450000);
  EXPECT_EQ(free_memory(memory), 15000);
}

// A container sees its own group where the path is that outside.
TEST(SystemMemory, ContainersPathIsOutside) {
  const Root root;
  root.write("proc/self/cgroup", "0::/outside/name\n");
  root.write("sys/fs/cgroup/memory.max", "123456\n");
  EXPECT_EQ(root.read().group_limit, 123456);
}

TEST(SystemMemory, SystemsThatSayNothing) {
  const SystemMemory memory = read_system_memory("/nowhere");
  EXPECT_EQ(memory.total, -1);
  EXPECT_EQ(free_memory(memory), -1);
  for (const MemoryCeiling& one : memory_ceilings(memory)) EXPECT_FALSE(one.of_machine);
}

TEST(SystemMemory, ThisProcess) {
  EXPECT_GT(process_status_bytes("VmHWM:"), 1 << 20);
  EXPECT_EQ(process_status_bytes("VmNothing:"), -1);
}

}  // namespace
}  // namespace ds
