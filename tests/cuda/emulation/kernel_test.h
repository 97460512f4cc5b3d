// Tests of single kernels on an emulated GPU.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "cuda/emulation/stand_in.h"
#include "device/cuda_device.h"
#include "kernels/cuda/device.cuh"

namespace ds::testing {

class KernelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    stand_in::reset(1);
    device_ = make_cuda_device(0);
  }
  void TearDown() override {
    device_.reset();
    EXPECT_TRUE(stand_in::violations().empty());
  }
  template <class... P, class... A>
  void start(void (*kernel)(P...), const kernels::cuda::Grid& grid, A... arguments) {
    const DeviceScope scope(*device_);
    kernels::cuda::launch({device_->default_stream().native(), 1, 0, 90, {}}, "test", kernel, grid,
                          arguments...);
  }
  // Starts it and waits for its end.
  template <class... P, class... A>
  void run(void (*kernel)(P...), const kernels::cuda::Grid& grid, A... arguments) {
    start(kernel, grid, arguments...);
    device_->default_stream().synchronize();
  }
  std::shared_ptr<CudaDevice> device_;
};

}  // namespace ds::testing
