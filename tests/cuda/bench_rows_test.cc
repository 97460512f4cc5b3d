// The rows that gpu_bench times, at tiny sizes: every one runs on a GPU as on the CPU.
#include "bench/gpu_rows.h"

#include <gtest/gtest.h>

#include <set>

#include "device/cuda_device.h"

namespace ds {
namespace {

void run_every_row(const OpContext& ctx) {
  std::set<std::string> names;
  for (const testing::OpCase& row : bench::gpu_rows(bench::RowSizes::kTiny)) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(names.insert(row.name).second) << "two rows of one name";
    EXPECT_NE(row.flops > 0, row.bytes > 0) << "one limit binds it";
    const std::function<void()> body = row.prepare(ctx);
    for (int i = 0; i < 2; ++i) body();
    ctx.device->default_stream().synchronize();
  }
  EXPECT_GT(names.size(), 30U);
}

TEST(BenchRows, RunOnTheCpu) {
  ThreadPool pool(1);
  run_every_row({make_cpu_device(), &pool});
}

TEST(BenchRows, RunOnAGpu) {
  std::string why_none;
  if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
  ThreadPool pool(1);
  run_every_row({make_cuda_device(0), &pool});
}

// Full sizes: the same operators, and arrays that no cache holds.
TEST(BenchRows, FullSizesHaveTheSameRows) {
  const auto kinds = [](bench::RowSizes sizes) {
    std::set<std::string> out;
    for (const testing::OpCase& row : bench::gpu_rows(sizes)) {
      out.insert(row.name.substr(0, row.name.find('/')));
      if (sizes == bench::RowSizes::kTiny || row.bytes == 0) continue;
      EXPECT_GE(row.bytes, 2e8) << row.name;
    }
    return out;
  };
  EXPECT_EQ(kinds(bench::RowSizes::kFull), kinds(bench::RowSizes::kTiny));
}

}  // namespace
}  // namespace ds
