// What a machine without a GPU, or a build without CUDA, is told.
#include <gtest/gtest.h>

#include <climits>
#include <string>

#include "device/cuda_device.h"
#include "unit/base/expect_error.h"

namespace ds {
namespace {

using testing::expect_error;

TEST(CudaAbsent, AnEmptyListHasAReasonAndAFullOneNone) {
  std::string why_none = "left over";
  const auto devices = list_cuda_devices(&why_none);
  EXPECT_EQ(devices.empty(), !why_none.empty()) << why_none;
  EXPECT_NE(why_none, "left over");
  EXPECT_EQ(list_cuda_devices().size(), devices.size());
}

TEST(CudaAbsent, TheBuildSaysWhatItIs) {
  EXPECT_EQ(cuda_runtime_version().empty(), DS_TEST_CUDA_BUILD == 0);
  if (!cuda_driver_version().empty()) GTEST_SKIP() << "this machine has an NVIDIA driver";
  std::string why_none;
  EXPECT_TRUE(list_cuda_devices(&why_none).empty());
  const char* const reason = DS_TEST_CUDA_BUILD == 0 ? "DS_WITH_CUDA" : "no NVIDIA driver";
  EXPECT_NE(why_none.find(reason), std::string::npos) << why_none;
}

TEST(CudaAbsent, NoDeviceCanBeMade) {
  std::string why_none;
  if (!list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "this machine has a GPU";
  for (const int index : {0, 1, 7, -1, INT_MAX, INT_MIN}) {
    for (int again = 0; again < 2; ++again) {
      expect_error(Code::kUnsupported,
                   {"cuda:" + std::to_string(index), "cannot be used", why_none},
                   [&] { make_cuda_device(index); });
    }
  }
}

}  // namespace
}  // namespace ds
