// Runs the rows of the operator table: against the references, gradients by finite differences, and
// equal bits for every thread count.
//
// DS_TEST_SEED=n repeats a run (a failure prints n); DS_TEST_CASE=text keeps the rows whose name
// contains the text.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>

#include "kernels/all_cases.h"
#include "kernels/case_util.h"
#include "kernels/simd_targets.h"
//
#include <hwy/highway.h>
#include <hwy/targets.h>

namespace ds::testing {
namespace {

uint64_t base_seed() {
  static const uint64_t seed = [] {
    if (const char* text = std::getenv("DS_TEST_SEED")) return std::strtoull(text, nullptr, 0);
    std::random_device device;
    return (static_cast<unsigned long long>(device()) << 32) | device();
  }();
  return seed;
}

// Every row draws its own numbers, the same whichever rows run.
uint64_t row_seed(const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash ^ base_seed();
}

bool wanted(const OpCase& row) {
  const char* text = std::getenv("DS_TEST_CASE");
  return text == nullptr || row.name.find(text) != std::string::npos;
}

class OpCases : public ::testing::TestWithParam<CaseFamily> {
 protected:
  OpCases() : device_(make_cpu_device()) {}

  std::string hint(const OpCase& row) const {
    return row.name + " (repeat with DS_TEST_SEED=" + std::to_string(base_seed()) +
           " DS_TEST_CASE=" + row.name + ")";
  }

  std::shared_ptr<Device> device_;
};

TEST_P(OpCases, MatchesReference) {
  ThreadPool pool(2);
  const OpContext ctx{device_, &pool};
  CaseResult worst;
  int rows = 0;
  for (const OpCase& row : GetParam().cases()) {
    if (!row.check || !wanted(row)) continue;
    ++rows;
    start_digest();
    const CaseResult result = row.check(ctx, row_seed(row.name));
    EXPECT_GT(digest().tensors, 0) << hint(row) << ": compared nothing";
    EXPECT_LE(result.worst, 1.0) << hint(row) << ": " << result.where;
    worst.merge(result.worst, row.name + ": " + result.where);
  }
  std::cout << GetParam().name << ": " << rows << " rows, worst deviation " << worst.worst
            << " of what is allowed, " << worst.where << "\n";
}

TEST_P(OpCases, GradientsMatchFiniteDifferences) {
  ThreadPool pool(2);
  const OpContext ctx{device_, &pool};
  CaseResult worst;
  int rows = 0;
  for (const OpCase& row : GetParam().cases()) {
    if (!row.gradient || !wanted(row)) continue;
    ++rows;
    start_digest();
    const CaseResult result = row.gradient(ctx, row_seed(row.name));
    EXPECT_GT(digest().tensors, 0) << hint(row) << ": compared nothing";
    EXPECT_LE(result.worst, 1.0) << hint(row) << ": " << result.where;
    worst.merge(result.worst, row.name + ": " + result.where);
  }
  std::cout << GetParam().name << ": " << rows << " rows, worst deviation " << worst.worst
            << " of what is allowed, " << worst.where << "\n";
}

// Every tensor that a row compares enters a digest of its bits; it must not depend on the threads.
TEST_P(OpCases, SameBitsForAnyThreadCount) {
  for (const OpCase& row : GetParam().cases()) {
    if (!row.check || !wanted(row)) continue;
    CaseDigest first;
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      const OpContext ctx{device_, &pool};
      start_digest();
      const CaseResult result = row.check(ctx, row_seed(row.name));
      EXPECT_LE(result.worst, 1.0) << hint(row) << ", " << threads << " threads: " << result.where;
      if (threads == 1) {
        first = digest();
      } else {
        EXPECT_EQ(digest().bits, first.bits)
            << hint(row) << ": " << threads << " threads give other bits than 1";
      }
    }
  }
}

// The kernels' other instruction sets, which this CPU can run but would not choose.
TEST_P(OpCases, EveryInstructionSet) {
  ThreadPool pool(2);
  const OpContext ctx{device_, &pool};
  for (int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    const int64_t target = rest & -rest;
    hwy::SetSupportedTargetsForTest(target);
    for (const OpCase& row : GetParam().cases()) {
      if (!row.check || !wanted(row)) continue;
      const CaseResult result = row.check(ctx, row_seed(row.name));
      EXPECT_LE(result.worst, 1.0)
          << hint(row) << " on " << hwy::TargetName(target) << ": " << result.where;
    }
    hwy::SetSupportedTargetsForTest(0);
  }
}

// Bodies for the benchmark run, and can run twice.
TEST_P(OpCases, SmallBenchmarkBodiesRun) {
  ThreadPool pool(2);
  const OpContext ctx{device_, &pool};
  for (const OpCase& row : GetParam().cases()) {
    if (!row.prepare || !wanted(row)) continue;
    EXPECT_TRUE(row.flops > 0 || row.bytes > 0) << row.name << " counts neither FLOP nor bytes";
    if (row.flops > 1e9 || row.bytes > 1e8) continue;
    const std::function<void()> body = row.prepare(ctx);
    body();
    body();
  }
}

INSTANTIATE_TEST_SUITE_P(Table, OpCases, ::testing::ValuesIn(all_case_families()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace ds::testing
