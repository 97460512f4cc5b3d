// Runs the rows of the operator table: against the references, gradients by finite differences, and
// equal bits for every thread count. tests/unit/kernels/targets_test.cc runs them on the
// instruction sets that this CPU has but would not choose.
#include "full_run.h"
#include "kernels/row_runs.h"

namespace ds::testing {
namespace {

class OpCases : public ::testing::TestWithParam<CaseFamily> {
 protected:
  OpCases() : device_(make_cpu_device()) {}

  std::shared_ptr<Device> device_;
};

TEST_P(OpCases, MatchesReference) {
  ThreadPool pool(2);
  const OpContext ctx{device_, &pool};
  RowReport report(GetParam());
  for (const OpCase& row : GetParam().cases()) {
    if (!row.check || !wanted(row)) continue;
    report.count();
    report.run(row, row.check, ctx);
  }
}

TEST_P(OpCases, GradientsMatchFiniteDifferences) {
  ThreadPool pool(2);
  run_gradients(GetParam(), OpContext{device_, &pool});
}

// Every tensor that a row compares enters a digest of its bits; it must not depend on the threads.
TEST_P(OpCases, SameBitsForAnyThreadCount) {
  for (const OpCase& row : GetParam().cases()) {
    if (!row.check || !wanted(row)) continue;
    CaseDigest first;
    for (const int threads : {1, 2, 3}) {
      if (threads == 2 && !full_run()) continue;
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
