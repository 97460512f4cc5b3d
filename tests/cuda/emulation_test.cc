// The emulation of kernels itself: indices, barriers, exchanges within a warp, order of streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "cuda/emulation/kernel_test.h"

namespace ds {
namespace {

using namespace kernels::cuda;

using EmulationTest = testing::KernelTest;

__global__ void number(int* out) {
  out[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] =
      static_cast<int>(threadIdx.x + 1000 * blockIdx.x + 100000 * blockIdx.y);
}

TEST_F(EmulationTest, EveryThreadKnowsItsPlaceAndRunsWhenTheStreamIsWaitedFor) {
  std::vector<int> out(2 * 3 * 70, -1);
  start(&number, {3, 70, 0, 2}, out.data());
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
    start(&totals, {1, threads}, in.data(), out.data(), 1001);
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
  start(&exchanges, {1, 64}, out.data());
  device_->default_stream().synchronize();
  for (const int bad : out) EXPECT_EQ(bad, 0);
}

// Every thread passes what it has through memory that the kernel declares and through the launch's.
// What the emulation makes in one exchange beside the loops that a GPU runs.
__global__ void reductions(const float* in, float* out) {
  const int lane = static_cast<int>(threadIdx.x);
  float sum = in[lane], most = in[lane];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
    const float other = __shfl_xor_sync(kAllLanes, most, offset);
    most = other > most ? other : most;
  }
  float several[3] = {in[lane], -in[lane], 2 * in[lane]};
  warp_sums(several);
  const float found[] = {sum,        warp_sum(in[lane]), most,          warp_max(in[lane]),
                         several[0], -several[1],        several[2] / 2};
  for (int i = 0; i < 7; ++i) out[lane * 7 + i] = found[i];
}

TEST_F(EmulationTest, ReductionsHaveTheBitsOfTheirLoops) {
  std::mt19937 random(11);
  std::vector<float> in(32), out(32 * 7);
  for (float& value : in) value = static_cast<float>(random()) * 0x1p-31f - 0.7f;
  start(&reductions, {1, 32}, in.data(), out.data());
  device_->default_stream().synchronize();
  for (size_t lane = 0; lane < 32; ++lane) {
    const float* const found = out.data() + lane * 7;
    EXPECT_EQ(found[2], *std::max_element(in.begin(), in.end()));
    EXPECT_EQ(found[3], found[2]);
    for (const size_t i : {1, 4, 5, 6}) EXPECT_EQ(found[i], found[0]) << i << " of lane " << lane;
  }
}

__global__ void through_shared(int* out) {
  __shared__ int own[96];
  int* const added = dynamic_shared<int>();
  const unsigned i = threadIdx.x;
  own[i] = static_cast<int>(i);
  __syncthreads();
  added[i] = own[31 - i];
  __syncthreads();
  out[i] = added[31 - i] + own[i + 64 * (i / 32)];
}

TEST_F(EmulationTest, SharedMemoryThatAKernelDeclaresCounts) {
  constexpr int64_t kPlain = 48 << 10, kOwn = 96 * 4;
  const auto* const kernel = reinterpret_cast<const void*>(&through_shared);
  std::vector<int> out(32);
  const auto without_asking = [&](int64_t bytes) {
    const DeviceScope scope(*device_);
    return emulation::launch(kernel, static_cast<cudaStream_t>(device_->default_stream().native()),
                             dim3(1), dim3(32), static_cast<size_t>(bytes),
                             [&] { through_shared(out.data()); });
  };
  {
    const DeviceScope scope(*device_);
    cudaFuncAttributes found{};
    ASSERT_EQ(cudaFuncGetAttributes(&found, kernel), cudaSuccess);
    EXPECT_EQ(found.sharedSizeBytes, static_cast<size_t>(kOwn));
  }
  EXPECT_EQ(without_asking(kPlain - kOwn), cudaSuccess);
  EXPECT_EQ(without_asking(kPlain - kOwn + 1), cudaErrorInvalidValue);
  EXPECT_EQ(without_asking(kPlain), cudaErrorInvalidValue);
  // Launches ask, on each GPU and for each growth.
  for (const int64_t bytes : {int64_t{128}, kPlain - kOwn + 1, kPlain, int64_t{227 << 10} - kOwn}) {
    std::fill(out.begin(), out.end(), -1);
    start(&through_shared, {1, 32, bytes}, out.data());
    device_->default_stream().synchronize();
    for (int i = 0; i < 32; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], 2 * i) << bytes;
  }
  try {
    start(&through_shared, {1, 32, 227 << 10}, out.data());
    FAIL() << "more than a block can have";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("launching test failed"),
                                               ::testing::HasSubstr("232448 bytes"),
                                               ::testing::HasSubstr("384 of the kernel's own")));
  }
}

TEST_F(EmulationTest, ImpossibleGridsAreErrors) {
  int out = 0;
  for (const Grid& grid : {Grid{1, 2048}, Grid{1, 32, 300 << 10}, Grid{int64_t{1} << 40, 32}}) {
    EXPECT_THROW(start(&number, grid, &out), Error);
  }
  start(&number, {0, 32}, &out);
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
