// Seeds of tests themselves: see tests/fresh_seed.h.
#include "fresh_seed.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cstdint>
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

TEST(FreshSeed, IsOneThatOptionsTake) {
  for (int i = 0; i < 100; ++i) EXPECT_LE(fresh_seed(), uint64_t{INT64_MAX});
}

// What the tests below read from another process of this program.
TEST(FreshSeed, Prints) {
  if (getenv("DS_TEST_PRINT_SEEDS") == nullptr) GTEST_SKIP() << "run by the tests that follow";
  std::printf("seeds %llu %llu\n", static_cast<unsigned long long>(fresh_seed()),
              static_cast<unsigned long long>(fresh_seed()));
  if (getenv("DS_TEST_FAIL") != nullptr) ADD_FAILURE() << "as asked";
}

// The first line with `pattern` that these tests print in a process of their own.
std::string line_of(const std::string& pattern, const std::string& environment,
                    const std::string& tests) {
  std::array<char, 4096> path{};
  if (readlink("/proc/self/exe", path.data(), path.size() - 1) < 0) return "";
  const std::string command = "env " + environment + " DS_TEST_PRINT_SEEDS=1 '" + path.data() +
                              "' --gtest_filter=" + tests + " | grep '" + pattern + "'";
  FILE* out = popen(command.c_str(), "r");
  if (out == nullptr) return "";
  std::array<char, 200> line{};
  const std::string text = fgets(line.data(), line.size(), out) == nullptr ? "" : line.data();
  pclose(out);
  return text;
}

TEST(FreshSeed, IsRepeatedWhicheverTestsRun) {
  const auto seeds = [](const std::string& environment, const std::string& tests) {
    return line_of("^seeds", environment, tests);
  };
  const std::string drawn = seeds("DS_TEST_SEED=5", "FreshSeed.Prints");
  EXPECT_EQ(drawn.substr(0, 6), "seeds ");
  EXPECT_EQ(seeds("DS_TEST_SEED=5", "FreshSeed.Prints:FreshSeed.IsAnother*"), drawn);
  EXPECT_NE(seeds("DS_TEST_SEED=6", "FreshSeed.Prints"), drawn);
  EXPECT_NE(seeds("-u DS_TEST_SEED", "FreshSeed.Prints"), drawn);
}

TEST(FreshSeed, IsPrintedWhereATestFails) {
  EXPECT_EQ(line_of("repeat with", "DS_TEST_SEED=5 DS_TEST_FAIL=1", "FreshSeed.Prints"),
            "FreshSeed.Prints: repeat with DS_TEST_SEED=5\n");
  EXPECT_EQ(line_of("repeat with", "DS_TEST_SEED=5", "FreshSeed.Prints"), "");
}

}  // namespace
}  // namespace ds
