// Every row of the operator table on every instruction set that kernels are compiled for and this
// machine can run, not only on the best one.
#include <gtest/gtest.h>

#include <tuple>

#include "kernels/simd_targets.h"

#include <hwy/highway.h>

#include "kernels/cpu.h"
#include "kernels/row_runs.h"

namespace ds::testing {
namespace {

class Targets : public ::testing::TestWithParam<std::tuple<CaseFamily, int64_t>> {
 protected:
  static void choose(int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    kernels::ask_for_vector_targets();
  }
  void SetUp() override { choose(std::get<1>(GetParam())); }
  void TearDown() override { choose(0); }
};

TEST_P(Targets, RowsMatchTheReference) {
  const auto device = make_cpu_device();
  ThreadPool pool(2);
  const OpContext ctx{device, &pool};
  for (const OpCase& row : std::get<0>(GetParam()).cases()) {
    if (!row.check || !wanted(row)) continue;
    const CaseResult result = row.check(ctx, row_seed(row.name));
    EXPECT_LE(result.worst, 1.0) << hint(row) << ": " << result.where;
  }
}

// The first target is the best one, which the tests of the families run on.
std::vector<int64_t> lesser_targets() {
  std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  if (targets.size() > 1) targets.erase(targets.begin());
  return targets;
}

INSTANTIATE_TEST_SUITE_P(Table, Targets,
                         ::testing::Combine(::testing::ValuesIn(all_case_families()),
                                            ::testing::ValuesIn(lesser_targets())),
                         [](const auto& row) {
                           return std::string(std::get<0>(row.param).name) + "_" +
                                  hwy::TargetName(std::get<1>(row.param));
                         });

}  // namespace
}  // namespace ds::testing
