// The emulation of kernels itself: indices, barriers, exchanges within a warp, order of streams.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cuda/emulation/stand_in.h"
#include "device/cuda_device.h"
#include "kernels/cuda/device.cuh"

namespace ds {
namespace {

using namespace kernels::cuda;

class EmulationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::stand_in::reset(1);
    device_ = make_cuda_device(0);
  }
  void TearDown() override {
    device_.reset();
    EXPECT_TRUE(testing::stand_in::violations().empty());
  }
  template <class... P, class... A>
  void run(void (*kernel)(P...), const Grid& grid, A... arguments) {
    const DeviceScope scope(*device_);
    launch({device_->default_stream().native(), 1, 0, 90, {}}, "test", kernel, grid, arguments...);
  }
  std::shared_ptr<CudaDevice> device_;
};

__global__ void number(int* out) {
  out[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] =
      static_cast<int>(threadIdx.x + 1000 * blockIdx.x + 100000 * blockIdx.y);
}

TEST_F(EmulationTest, EveryThreadKnowsItsPlaceAndRunsWhenTheStreamIsWaitedFor) {
  std::vector<int> out(2 * 3 * 70, -1);
  run(&number, {3, 70, 0, 2}, out.data());
  EXPECT_EQ(out[0], -1);
  device_->default_stream().synchronize();
  for (int i = 0; i < 420; ++i) {
    EXPECT_EQ(out[static_cast<size_t>(i)], i % 70 + 1000 * (i / 70 % 3) + 100000 * (i / 210));
  }
}

__global__ void totals(const int* in, int* out, int n) {
  __shared__ int partial[32];
  int mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x))
    mine += in[i];
  const int all = block_sum(mine, partial), twice = block_sum(2 * mine, partial);
  out[threadIdx.x] = all + twice;
}

TEST_F(EmulationTest, SumsOverBlocks) {
  std::vector<int> in(1001);
  std::iota(in.begin(), in.end(), 1);
  for (const int threads : {32, 96, 1024}) {
    std::vector<int> out(static_cast<size_t>(threads));
    run(&totals, {1, threads}, in.data(), out.data(), 1001);
    device_->default_stream().synchronize();
    for (const int value : out) EXPECT_EQ(value, 3 * 1001 * 1002 / 2);
  }
}

__global__ void exchanges(int* out) {
  const int lane = static_cast<int>(threadIdx.x % 32),
            base = 32 * static_cast<int>(threadIdx.x / 32);
  int bad = 0;
  bad += __shfl_sync(kAllLanes, base + lane, 5) != base + 5;
  bad += __shfl_xor_sync(kAllLanes, base + lane, 7) != base + (lane ^ 7);
  bad += __shfl_down_sync(kAllLanes, base + lane, 4) != base + (lane < 28 ? lane + 4 : lane);
  bad += __shfl_up_sync(kAllLanes, base + lane, 4, 16) != base + (lane % 16 < 4 ? lane : lane - 4);
  bad += __ballot_sync(kAllLanes, lane % 3 == 0) != 0x49249249u;
  if (lane < 8) bad += __shfl_xor_sync(0xFFu, lane, 1) != (lane ^ 1);
  __syncwarp();
  out[threadIdx.x] = bad;
}

TEST_F(EmulationTest, LanesExchange) {
  std::vector<int> out(64, -1);
  run(&exchanges, {1, 64}, out.data());
  device_->default_stream().synchronize();
  for (const int bad : out) EXPECT_EQ(bad, 0);
}

TEST_F(EmulationTest, ImpossibleGridsAreErrors) {
  int out = 0;
  for (const Grid& grid : {Grid{1, 2048}, Grid{1, 32, 300 << 10}, Grid{int64_t{1} << 40, 32}}) {
    EXPECT_THROW(run(&number, grid, &out), Error);
  }
  run(&number, {0, 32}, &out);
}

TEST(EmulationDeathTest, AnExchangeThatOthersDoNotMakeIsFound) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  testing::stand_in::reset(1);
  const std::shared_ptr<CudaDevice> device = make_cuda_device(0);
  void (*const lonely)(int*) = [](int* out) {
    if (threadIdx.x == 0) out[0] = __shfl_sync(kAllLanes, 1, 1);
    if (threadIdx.x != 0) __syncthreads();
  };
  EXPECT_DEATH(
      {
        int out = 0;
        const DeviceScope scope(*device);
        launch({device->default_stream().native(), 1, 0, 90, {}}, "lonely", lonely, {1, 32}, &out);
        device->default_stream().synchronize();
      },
      "exchange that others do not make");
}

}  // namespace
}  // namespace ds
