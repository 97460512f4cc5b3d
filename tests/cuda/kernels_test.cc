// Runs the rows of the operator table on a GPU, or on the emulated one: against the references with
// tensors that are not aligned, where kernels read element by element, and with aligned ones, twice
// for the same bits.
//
// DS_TEST_SEED=n repeats a run (a failure prints n); DS_TEST_CASE=text keeps the rows whose name
// contains the text.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>

#include "cuda/gpu_memory.h"
#include "kernels/all_cases.h"

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

bool wanted(const OpCase& row) {
  const char* text = std::getenv("DS_TEST_CASE");
  return text == nullptr || row.name.find(text) != std::string::npos;
}

class GpuCases : public ::testing::TestWithParam<CaseFamily> {
 protected:
  void SetUp() override {
    std::string why_none;
    if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
    device_ = make_cuda_device(0);
    use_memory_of(device_);
  }
  void TearDown() override { case_memory() = CaseMemory(); }

  std::string hint(const OpCase& row) const {
    return row.name + " (repeat with DS_TEST_SEED=" + std::to_string(base_seed()) +
           " DS_TEST_CASE=" + row.name + ")";
  }

  std::shared_ptr<CudaDevice> device_;
};

TEST_P(GpuCases, MatchesReferenceAndRepeatsItsBits) {
  ThreadPool pool(1);
  const OpContext ctx{device_, &pool};
  CaseResult worst;
  int rows = 0;
  for (const OpCase& row : GetParam().cases()) {
    if (!row.check || !wanted(row)) continue;
    ++rows;
    CaseDigest first;
    for (int turn = 0; turn < 3; ++turn) {
      case_memory().shift = turn == 0 ? 1 : 0;
      start_digest();
      const CaseResult result = row.check(ctx, base_seed());
      EXPECT_GT(digest().tensors, 0) << hint(row) << ": compared nothing";
      EXPECT_LE(result.worst, 1.0) << hint(row) << ": " << result.where;
      worst.merge(result.worst, row.name + ": " + result.where);
      if (turn == 1) first = digest();
      if (turn == 2) {
        EXPECT_EQ(digest().bits, first.bits) << hint(row) << ": other bits in the second run";
      }
    }
  }
  std::cout << GetParam().name << ": " << rows << " rows, worst deviation " << worst.worst
            << " of what is allowed, " << worst.where << "\n";
}

TEST_P(GpuCases, GradientsMatchFiniteDifferences) {
  ThreadPool pool(1);
  const OpContext ctx{device_, &pool};
  for (const OpCase& row : GetParam().cases()) {
    if (!row.gradient || !wanted(row)) continue;
    start_digest();
    const CaseResult result = row.gradient(ctx, base_seed());
    EXPECT_GT(digest().tensors, 0) << hint(row) << ": compared nothing";
    EXPECT_LE(result.worst, 1.0) << hint(row) << ": " << result.where;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, GpuCases, ::testing::ValuesIn(all_case_families()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace ds::testing
