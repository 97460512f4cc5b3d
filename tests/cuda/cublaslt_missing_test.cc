// A machine without cuBLASLt: the first product says so, once, and nothing else does.
#include "cuda/log_lines.h"
#include "cuda/matmul_check.h"
#include "kernels/cuda/libraries.h"

#include <gmock/gmock.h>

#include <cstdlib>

namespace ds::testing {
namespace {

TEST_F(GpuMatmul, WithoutCublasLtTheFirstProductWarns) {
  ::setenv("DS_CUBLASLT_LIBRARY", "/nowhere/libcublasLt", 1);
  const LogLines log;
  const std::vector<kernels::VendorLibrary> all = kernels::vendor_libraries();
  EXPECT_FALSE(all.at(0).usable);
  EXPECT_THAT(log.warnings(), ::testing::IsEmpty()) << "a report lists, and does not warn";
  for (int turn = 0; turn < 2; ++turn) {
    check(shape(9, 24, 100), DType::kBFloat16, DType::kBFloat16, 0, 0, true, false, 4, true);
    EXPECT_THAT(log.warnings(),
                ::testing::ElementsAre(::testing::AllOf(
                    ::testing::HasSubstr("cuda: matrix products by kernels of our own"),
                    ::testing::HasSubstr("/nowhere/libcublasLt"))));
  }
}

}  // namespace
}  // namespace ds::testing
