// Seeds of tests themselves: see tests/fresh_seed.h.
#include "fresh_seed.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <set>
#include <string>

namespace ds {
namespace {

TEST(FreshSeed, IsAnotherAtEachCall) {
  std::set<uint64_t> seen = {run_seed()};
  for (int i = 0; i < 100; ++i) seen.insert(fresh_seed());
  EXPECT_EQ(seen.size(), 101u);
}

// Prints what the next test reads from another process of this program.
TEST(FreshSeed, Prints) {
  if (getenv("DS_TEST_PRINT_SEEDS") == nullptr) GTEST_SKIP() << "run by FreshSeed.IsRepeated";
  std::printf("seeds %llu %llu\n", static_cast<unsigned long long>(fresh_seed()),
              static_cast<unsigned long long>(fresh_seed()));
}

// The seeds that the test before draws in a process of its own.
std::string seeds_with(const std::string& environment, const std::string& tests) {
  std::array<char, 4096> path{};
  if (readlink("/proc/self/exe", path.data(), path.size() - 1) < 0) return "";
  const std::string command = "env " + environment + " DS_TEST_PRINT_SEEDS=1 '" + path.data() +
                              "' --gtest_filter=" + tests + " | grep ^seeds";
  FILE* out = popen(command.c_str(), "r");
  if (out == nullptr) return "";
  std::array<char, 200> line{};
  const std::string text = fgets(line.data(), line.size(), out) == nullptr ? "" : line.data();
  pclose(out);
  return text;
}

TEST(FreshSeed, IsRepeatedWhicheverTestsRun) {
  const std::string seeds = seeds_with("DS_TEST_SEED=5", "FreshSeed.Prints");
  EXPECT_EQ(seeds.substr(0, 6), "seeds ");
  EXPECT_EQ(seeds_with("DS_TEST_SEED=5", "FreshSeed.Prints:FreshSeed.IsAnother*"), seeds);
  EXPECT_NE(seeds_with("DS_TEST_SEED=6", "FreshSeed.Prints"), seeds);
  EXPECT_NE(seeds_with("-u DS_TEST_SEED", "FreshSeed.Prints"), seeds);
}

}  // namespace
}  // namespace ds
