// Devices by name.
#include "device/open_device.h"

#include <gtest/gtest.h>

#include "unit/base/expect_error.h"

namespace ds {
namespace {

TEST(OpenDevice, TheCpu) { EXPECT_EQ(device_name(*open_device("cpu")), "cpu"); }

TEST(OpenDevice, OtherTextsAreRefused) {
  for (const char* name :
       {"", "CPU", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda: 1", "cuda:99999999999"}) {
    testing::expect_error(Code::kInvalidArgument, {"there is no device", "\"cuda:0\""},
                          [&] { open_device(name); });
  }
}

}  // namespace
}  // namespace ds
