// Recorded work on the stand-in of CUDA: what is launched, what the host waits for, and what is
// left when calls fail.
#include <gmock/gmock.h>

#include "cuda/emulation/stand_in.h"
#include "cuda/offload_world.h"
#include "cuda/side.h"
#include "ops/elementwise.h"
#include "unit/base/expect_error.h"

namespace ds {
namespace {

using namespace gpu_test;  // NOLINT: what these tests are about
namespace stand_in = testing::stand_in;

class RecordedWork : public ::testing::Test {
 protected:
  void SetUp() override { stand_in::reset(2); }
  void TearDown() override {
    EXPECT_EQ(stand_in::live(), stand_in::Live{}) << "something was not given back";
    EXPECT_THAT(stand_in::violations(), ::testing::IsEmpty());
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "a handled error was left behind";
    stand_in::reset(2);
  }
};

TEST_F(RecordedWork, AFailureLeavesNothing) {
  const auto device = make_cuda_device(0);
  const testing::Side gpu(device);
  const Tensor x = gpu.tensor(DType::kFloat32, std::vector<float>(64, 1));
  const auto memory = device->make_graph_memory();
  int64_t elements = 64;
  const auto body = [&] {
    elements *= 2;  // fresh memory each time
    Tensor y = gpu.ctx.workspace(DType::kFloat32, {elements});
    ops::fill(gpu.ctx, 1, y);
  };
  const stand_in::Live before = stand_in::live();
  for (const char* const call :
       {"cudaStreamBeginCapture", "cudaLaunchKernel", "cudaMalloc", "cudaStreamEndCapture",
        "cudaGraphGetNodes", "cudaGraphInstantiate"}) {
    SCOPED_TRACE(call);
    stand_in::fail_next(call, cudaErrorDevicesUnavailable);
    EXPECT_THROW(device->record(memory, body), Error);
    EXPECT_EQ(stand_in::live().graphs, 0);
    if (std::string(call) == "cudaStreamEndCapture") {  // the stand-in still records
      const DeviceScope scope(*device);
      cudaGraph_t graph = nullptr;
      static_cast<void>(cudaStreamEndCapture(
          static_cast<cudaStream_t>(device->default_stream().native()), &graph));
      static_cast<void>(cudaGraphDestroy(graph));
      static_cast<void>(cudaGetLastError());
    }
  }
  const auto graph = device->record(memory, body);
  EXPECT_EQ(stand_in::live().graphs, 1) << "the description is not kept";
  stand_in::fail_next("cudaGraphLaunch", cudaErrorIllegalAddress);
  testing::expect_error(Code::kDevice, {"launching recorded work on cuda:0", "restarted"},
                        [&] { graph->launch(); });
  graph->launch();
  EXPECT_EQ(stand_in::live().streams, before.streams);
}

TEST_F(RecordedWork, OutOfMemoryEndsTheRecordingAlone) {
  stand_in::reset(1, int64_t{8} << 20);
  const auto device = make_cuda_device(0);
  const testing::Side gpu(device);
  { const Tensor cached = gpu.ctx.workspace(DType::kUInt8, {6 << 20}); }
  const auto memory = device->make_graph_memory();
  // Nothing is freed for a recording, since that would wait.
  testing::expect_error(Code::kOutOfMemory, {"4.00 MiB"}, [&] {
    device->record(memory, [&] { gpu.ctx.workspace(DType::kUInt8, {4 << 20}); });
  });
  const Tensor after = gpu.ctx.workspace(DType::kUInt8, {4 << 20});
}

// A step is two launches and one wait.
TEST_F(RecordedWork, MicroBatchesAreLaunches) {
  const auto engine = make_engine_on(true, with(base_config(), {{"graph_harvesting", true}}));
  for (int i = 0; i < 2; ++i) engine->train_batch();  // one to see the kinds, one to record them
  EXPECT_EQ(stand_in::graph_launches(), 2);
  const int64_t waits = stand_in::host_waits();
  for (int i = 0; i < 3; ++i) engine->train_batch();
  EXPECT_EQ(stand_in::graph_launches(), 8);
  EXPECT_EQ(stand_in::host_waits() - waits, 3);
}

// Of an offloaded optimizer too: one kind of micro batch, whose gradients the host receives and
// adds up after the launch.
TEST_F(RecordedWork, MicroBatchesOfAnOffloadedOptimizerAreLaunches) {
  const auto engine =
      make_engine_on(true, offloaded(with(base_config(), {{"graph_harvesting", true}})));
  for (int i = 0; i < 3; ++i) engine->train_batch();
  EXPECT_EQ(stand_in::graph_launches(), 5) << "of six, the first of which runs as ever";
}

// What cannot be recorded runs as without.
TEST_F(RecordedWork, FallsBackWithTheReason) {
  const auto plain = make_engine_on(true, base_config());
  const auto failing = make_engine_on(true, with(base_config(), {{"graph_harvesting", true}}));
  stand_in::fail_next("cudaGraphInstantiate", cudaErrorDevicesUnavailable);
  for (int i = 0; i < 4; ++i) failing->train_batch();
  EXPECT_EQ(stand_in::graph_launches(), 0);
  for (int i = 0; i < 4; ++i) plain->train_batch();
  EXPECT_TRUE(same_bits(weights_of(*failing), weights_of(*plain)));
  const auto timed = make_engine_on(
      true, with(base_config(), {{"graph_harvesting", true}, {"wall_clock_breakdown", true}}));
  for (int i = 0; i < 4; ++i) timed->train_batch();
  EXPECT_EQ(stand_in::graph_launches(), 0);
  EXPECT_TRUE(same_bits(weights_of(*timed), weights_of(*plain)));
}

}  // namespace
}  // namespace ds
