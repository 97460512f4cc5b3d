// Devices by name.
#include "device/open_device.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "device/cuda_device.h"

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

// Sets a variable of the environment for the time of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const old = std::getenv(name)) old_ = old;
    ::setenv(name, value, 1);
  }
  ~Variable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

// DeepSpeed's variable, for programs that ask for "auto".
TEST(OpenDevice, TheEnvironmentChoosesTheAutomaticOne) {
  const auto gpus = static_cast<int>(list_cuda_devices().size());
  {
    const Variable cpu("DS_ACCELERATOR", "cpu");
    EXPECT_EQ(device_name(*open_device("auto")), "cpu");
  }
  {
    const Variable none("DS_ACCELERATOR", "");
    const Variable rank("LOCAL_RANK", "0");
    EXPECT_EQ(device_name(*open_device("auto")), gpus > 0 ? "cuda:0" : "cpu");
  }
  {
    const Variable cuda("DS_ACCELERATOR", "cuda");
    const Variable rank("LOCAL_RANK", "5");
    if (gpus > 0) {
      EXPECT_EQ(device_name(*open_device("auto")), "cuda:" + std::to_string(5 % gpus));
    } else {
      testing::expect_error(Code::kUnsupported, {"cuda:0 cannot be used"},
                            [] { open_device("auto"); });
    }
  }
  for (const char* const name : {"xpu", "CUDA", "cuda:1"}) {
    const Variable wrong("DS_ACCELERATOR", name);
    testing::expect_error(Code::kInvalidArgument,
                          {"DS_ACCELERATOR is \"" + std::string(name) + "\"", "\"cuda\""},
                          [] { open_device("auto"); });
    EXPECT_EQ(device_name(*open_device("cpu")), "cpu");  // who names a device is not asked
  }
}

}  // namespace
}  // namespace ds
