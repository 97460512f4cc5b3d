// Runs the rows of the operator table on a GPU, or on the emulated one: against the references with
// tensors that are not aligned, where kernels read element by element, and with aligned ones, twice
// for the same bits. The emulation, which has one order of threads, repeats every eighth row only,
// and has three quarters of the rows in one of both ways.
#include "kernels/row_runs.h"

#include "cuda/gpu_memory.h"
#include "full_run.h"

namespace ds::testing {
namespace {

// Whether a row of the table runs unaligned, aligned, and aligned again.
bool has_turn(int row, int turn) {
  constexpr bool kSample[8][3] = {{true, true, true},   {false, true, false}, {true, false, false},
                                  {false, true, false}, {true, true, false},  {false, true, false},
                                  {true, false, false}, {false, true, false}};
  return !emulated() || full_run() || kSample[row % 8][turn];
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

  std::shared_ptr<CudaDevice> device_;
};

TEST_P(GpuCases, MatchesReferenceAndRepeatsItsBits) {
  ThreadPool pool(1);
  const OpContext ctx{device_, &pool};
  RowReport report(GetParam());
  int rows = 0;
  for (const OpCase& row : GetParam().cases()) {
    if (!row.check || !row.on_gpus || !wanted(row)) continue;
    report.count();
    CaseDigest first;
    const int index = rows++;
    for (int turn = 0; turn < 3; ++turn) {
      if (!has_turn(index, turn)) continue;
      case_memory().shift = turn == 0 ? 1 : 0;
      report.run(row, row.check, ctx);
      if (turn == 1) first = digest();
      if (turn == 2) {
        EXPECT_EQ(digest().bits, first.bits) << hint(row) << ": other bits in the second run";
      }
    }
  }
}

TEST_P(GpuCases, GradientsMatchFiniteDifferences) {
  ThreadPool pool(1);
  run_gradients(GetParam(), OpContext{device_, &pool});
}

INSTANTIATE_TEST_SUITE_P(Table, GpuCases, ::testing::ValuesIn(all_case_families()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace ds::testing
