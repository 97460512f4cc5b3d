// Every row of the operator table on every instruction set that kernels are compiled for and this
// machine can run, not only on the best one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <tuple>

#include "kernels/simd_targets.h"

#include <hwy/highway.h>

#include "kernels/all_cases.h"
#include "kernels/case_util.h"

namespace ds::testing {
namespace {

uint64_t base_seed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("DS_TEST_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 0) : std::random_device()();
  }();
  return seed;
}

class Targets : public ::testing::TestWithParam<std::tuple<CaseFamily, int64_t>> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(std::get<1>(GetParam())); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(Targets, RowsMatchTheReference) {
  const auto device = make_cpu_device();
  ThreadPool pool(2);
  const OpContext ctx{device, &pool};
  for (const OpCase& row : std::get<0>(GetParam()).cases()) {
    if (!row.check) continue;
    const CaseResult result = row.check(ctx, base_seed());
    EXPECT_LE(result.worst, 1.0) << row.name << " (DS_TEST_SEED=" << base_seed()
                                 << "): " << result.where;
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
