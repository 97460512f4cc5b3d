// What the CUDA device asks of the runtime, on a stand-in: contexts, errors, what is freed and
// when.
#include "cuda/emulation/stand_in.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/cuda_device.h"
#include "tensor/transfer.h"
#include "unit/base/expect_error.h"

namespace ds {
namespace {

using testing::expect_error;
namespace stand_in = testing::stand_in;
using stand_in::Live;

class CudaStandIn : public ::testing::Test {
 protected:
  void SetUp() override { stand_in::reset(2); }
  void TearDown() override {
    EXPECT_EQ(stand_in::live(), Live{}) << "something was not given back";
    EXPECT_THAT(stand_in::violations(), ::testing::IsEmpty());
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "a handled error was left behind";
    stand_in::reset(2);  // for the tests of other files
  }
};

// One of everything.
void use(Device& device) {
  std::vector<unsigned char> host(300, 7);
  void* const block = device.allocate(300, MemoryTag::kOther);
  device.copy(block, host.data(), 300, device.default_stream());
  device.clear(block, 100, device.default_stream());
  const auto stream = device.create_stream();
  const auto event = device.default_stream().record();
  stream->wait(*event);
  static_cast<void>(event->ready());
  event->synchronize();
  stream->synchronize();
  device.deallocate(block, 300, MemoryTag::kOther);
  device.trim();
}

TEST_F(CudaStandIn, EveryCallRestoresTheCallersContext) {
  for (const CUcontext before : {CUcontext{nullptr}, stand_in::foreign_context(),
                                 stand_in::primary_context(0), stand_in::primary_context(1)}) {
    stand_in::set_current_context(before);
    auto device = make_cuda_device(1);
    use(*device);
    EXPECT_EQ(stand_in::current_context(), before);
    device.reset();
    EXPECT_EQ(stand_in::current_context(), before);
    // On failure as well.
    device = make_cuda_device(1);
    stand_in::fail_next("cudaMemsetAsync", cudaErrorIllegalAddress);
    EXPECT_THROW(device->clear(&device, 1, device->default_stream()), Error);
    EXPECT_EQ(stand_in::current_context(), before);
  }
  stand_in::set_current_context(nullptr);
}

TEST_F(CudaStandIn, OtherGpusAreLeftAlone) {
  EXPECT_EQ(list_cuda_devices().size(), 2u);
  EXPECT_FALSE(stand_in::has_context(0) || stand_in::has_context(1)) << "listing made a context";
  const auto device = make_cuda_device(1);
  use(*device);
  std::thread([&] { use(*device); }).join();  // a thread that never used CUDA
  EXPECT_FALSE(stand_in::has_context(0));
  EXPECT_TRUE(stand_in::has_context(1));
  EXPECT_EQ(stand_in::current_gpu_calls(0), 0);
  EXPECT_GT(stand_in::current_gpu_calls(1), 20);
}

TEST_F(CudaStandIn, EverythingIsGivenBack) {
  {
    const auto device = make_cuda_device(0);
    void* const block = device->allocate(5000, MemoryTag::kOther);
    const auto stream = device->create_stream();
    const auto event = stream->record();
    EXPECT_EQ(stand_in::live(), (Live{.blocks = 1, .streams = 2, .events = 1}));
    device->deallocate(block, 5000, MemoryTag::kOther);
    EXPECT_EQ(stand_in::live().blocks, 1) << "cached";
  }
  EXPECT_EQ(stand_in::live(), Live{});
}

TEST_F(CudaStandIn, MemoryIsFreedAfterTheWorkThatUsesIt) {
  for (const bool cache : {true, false}) {
    const auto device = make_cuda_device(0, {.cache = cache});
    void* const block = device->allocate(5000, MemoryTag::kOther);
    device->clear(block, 5000, device->default_stream());
    device->deallocate(block, 5000, MemoryTag::kOther);
    device->trim();
    EXPECT_EQ(stand_in::live().blocks, 0);
  }
}

TEST_F(CudaStandIn, EventsFollowTheirStream) {
  const auto device = make_cuda_device(0);
  void* const block = device->allocate(64, MemoryTag::kOther);
  const auto early = device->default_stream().record();
  device->clear(block, 64, device->default_stream());
  const auto late = device->default_stream().record();
  EXPECT_FALSE(late->ready());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "not ready is no error";
  early->synchronize();
  EXPECT_TRUE(early->ready());
  EXPECT_FALSE(late->ready());
  late->synchronize();
  EXPECT_TRUE(late->ready());
  device->deallocate(block, 64, MemoryTag::kOther);
}

TEST_F(CudaStandIn, EventsAreMadeOnce) {
  const auto device = make_cuda_device(0);
  const auto stream = device->create_stream();
  const auto turn = [&] {
    const auto made = device->default_stream().record();
    stream->wait(*made);
    device->default_stream().wait(*stream->record());
    device->default_stream().synchronize();
  };
  turn();
  const int64_t made = stand_in::events_made();
  for (int i = 0; i < 1000; ++i) turn();
  EXPECT_EQ(stand_in::events_made(), made);
  EXPECT_LE(made, 2);
}

// What one holder asks is about its own place in the work, whatever became of the event before, and
// whoever waits for an event waits for the work that was marked then.
TEST_F(CudaStandIn, AnEventThatIsUsedAgainMarksOnePlaceAtATime) {
  const auto device = make_cuda_device(0);
  const auto stream = device->create_stream();
  auto* const block = static_cast<unsigned char*>(device->allocate(2, MemoryTag::kOther));
  unsigned char seen = 1;
  device->clear(block, 1, device->default_stream());
  auto first = device->default_stream().record();
  stream->wait(*first);
  device->copy(&seen, block, 1, *stream);
  first.reset();
  device->clear(block + 1, 1, *stream);
  const auto second = stream->record();  // the same event, on another stream
  EXPECT_FALSE(second->ready());
  const auto third = device->default_stream().record();
  third->synchronize();
  EXPECT_FALSE(second->ready()) << "the default stream alone has come so far";
  second->synchronize();
  EXPECT_EQ(seen, 0);
  device->deallocate(block, 2, MemoryTag::kOther);
}

TEST_F(CudaStandIn, EventsAreSharedByThreads) {
  const auto device = make_cuda_device(0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto stream = device->create_stream();
      for (int turn = 0; turn < 300; ++turn) {
        const auto event = stream->record();
        event->synchronize();
        EXPECT_TRUE(event->ready());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(stand_in::events_made(), 4);
}

// An event outlives its device, and what was recorded with work does not come back.
TEST_F(CudaStandIn, EventsEndWithTheirLastHolder) {
  auto device = make_cuda_device(0);
  auto event = device->default_stream().record();
  device.reset();
  EXPECT_EQ(stand_in::live().events, 1);
  event->synchronize();
  event.reset();
  EXPECT_EQ(stand_in::live().events, 0);

  device = make_cuda_device(0);
  const auto graph = device->record(device->make_graph_memory(), [&] {
    const auto inside = device->default_stream().record();
    EXPECT_EQ(stand_in::live().events, 1);
  });
  EXPECT_EQ(stand_in::live().events, 0);
}

TEST_F(CudaStandIn, StreamsOfAnotherGpuMayBeWaitedForButNotUsed) {
  const auto first = make_cuda_device(0);
  const auto second = make_cuda_device(1);
  void* const block = first->allocate(64, MemoryTag::kOther);
  expect_error(Code::kInvalidArgument, {"cuda:0", "stream of another device"},
               [&] { first->clear(block, 64, second->default_stream()); });
  first->clear(block, 64, first->default_stream());
  second->default_stream().wait(*first->default_stream().record());
  unsigned char byte = 1;
  first->copy(&byte, block, 1, first->default_stream());
  second->default_stream().synchronize();
  EXPECT_EQ(*static_cast<unsigned char*>(block), 0);
  first->default_stream().synchronize();
  first->deallocate(block, 64, MemoryTag::kOther);
  EXPECT_EQ(byte, 0);
}

TEST_F(CudaStandIn, UnfinishedWorkOfAnotherKindOfDeviceIsRefused) {
  struct Unfinished : Event {
    bool ready() const override { return false; }
    void synchronize() override {}
  };
  const auto device = make_cuda_device(0);
  expect_error(Code::kInvalidArgument, {"cuda:0", "another kind of device"},
               [&] { device->default_stream().wait(Unfinished{}); });
}

TEST_F(CudaStandIn, OutOfMemoryGivesUpTheCacheFirst) {
  stand_in::reset(1, int64_t{10} << 20);
  const auto device = make_cuda_device(0);
  void* const small = device->allocate(6 << 20, MemoryTag::kOther);
  device->deallocate(small, 6 << 20, MemoryTag::kOther);
  void* const large = device->allocate(8 << 20, MemoryTag::kParameters);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(device->reserved_bytes(), 8 << 20);
  expect_error(Code::kOutOfMemory,
               {"out of memory on cuda:0 (Stand-in), where 2.00 MiB of 10.00 MiB are free",
                "4.00 MiB for gradients", "parameters: 8.00 MiB"},
               [&] { device->allocate(4 << 20, MemoryTag::kGradients); });
  EXPECT_EQ(device->reserved_bytes(), 8 << 20);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  device->deallocate(large, 8 << 20, MemoryTag::kParameters);
}

TEST_F(CudaStandIn, PinnedMemoryIsKeptAndCounted) {
  const auto device = make_cuda_device(1);
  const std::shared_ptr<Device> pinned = device->pinned();
  EXPECT_EQ(stand_in::live().pinned, 0) << "none before it is asked for";
  void* const block = pinned->allocate(5000, MemoryTag::kIo);
  EXPECT_EQ(pinned->kind(), DeviceKind::kCpu);
  EXPECT_GE(pinned->account().now(MemoryTag::kIo), 5000);
  EXPECT_EQ(device->account().total_now(), 0);
  pinned->deallocate(block, 5000, MemoryTag::kIo);
  EXPECT_EQ(stand_in::live().pinned, 1) << "cached";
  EXPECT_EQ(pinned->allocate(5000, MemoryTag::kIo), block);
  pinned->deallocate(block, 5000, MemoryTag::kIo);
  pinned->trim();
  EXPECT_EQ(stand_in::live().pinned, 0);

  for (int i = 0; i < 2; ++i) stand_in::fail_next("cudaHostAlloc", cudaErrorMemoryAllocation);
  expect_error(Code::kOutOfMemory, {"pages locked for cuda:1"},
               [&] { pinned->allocate(4096, MemoryTag::kIo); });
  stand_in::fail_next("cudaHostAlloc", cudaErrorDevicesUnavailable);
  expect_error(Code::kDevice, {"locking 4.00 KiB", "cuda:1"},
               [&] { pinned->allocate(4096, MemoryTag::kIo); });
}

TEST_F(CudaStandIn, AFailedTransferLeavesNothingUnderWay) {
  const auto device = make_cuda_device(0);
  const Tensor there = Tensor::empty(device, DType::kUInt8, {5000}, MemoryTag::kOther);
  std::vector<unsigned char> here(5000, 9);
  for (const char* const call : {"cudaMemcpyAsync", "cudaEventRecord", "cudaEventSynchronize"}) {
    SCOPED_TRACE(call);
    stand_in::fail_next(call, cudaErrorDevicesUnavailable);
    expect_error(Code::kDevice, {"cuda:0"}, [&] { copy_to_host(there, here.data()); });
    device->pinned()->trim();  // a violation if the GPU still wrote there
  }
  for (const char* const call : {"cudaMemcpyAsync", "cudaEventRecord", "cudaHostAlloc"}) {
    SCOPED_TRACE(call);
    device->pinned()->trim();
    stand_in::fail_next(call, cudaErrorDevicesUnavailable);
    expect_error(Code::kDevice, {"cuda:0"}, [&] { copy_from_host(here.data(), there); });
    device->pinned()->trim();
  }
  stand_in::fail_next("cudaEventRecord", cudaErrorDevicesUnavailable);
  expect_error(Code::kDevice, {"cuda:0"}, [&] { Fetched{there}; });
  device->pinned()->trim();
}

TEST_F(CudaStandIn, ErrorsNameTheCallAndTheGpu) {
  const auto device = make_cuda_device(1);
  void* const block = device->allocate(4096, MemoryTag::kOther);
  const auto stream = device->create_stream();
  const auto event = stream->record();
  const std::vector<std::tuple<const char*, const char*, std::function<void()>>> cases = {
      {"cudaMalloc", "allocating 8.00 KiB", [&] { device->allocate(8192, MemoryTag::kOther); }},
      {"cudaMemcpyAsync", "copying 4.00 KiB", [&] { device->copy(block, block, 4096, *stream); }},
      {"cudaMemcpy2DAsync", "copying 2 rows",
       [&] { device->copy_rows(block, 8, block, 8, 4, 2, *stream); }},
      {"cudaMemsetAsync", "clearing 4.00 KiB", [&] { device->clear(block, 4096, *stream); }},
      {"cudaStreamCreateWithFlags", "creating a stream", [&] { device->create_stream(); }},
      {"cudaStreamSynchronize", "waiting for a stream", [&] { stream->synchronize(); }},
      {"cudaStreamWaitEvent", "wait for an event", [&] { stream->wait(*event); }},
      {"cudaEventCreateWithFlags", "creating an event", [&] { stream->record(); }},
      {"cudaEventRecord", "recording an event", [&] { stream->record(); }},
      {"cudaEventQuery", "asking for an event", [&] { static_cast<void>(event->ready()); }},
      {"cudaEventSynchronize", "waiting for an event", [&] { event->synchronize(); }},
      {"cudaSetDevice", "clearing 4.00 KiB", [&] { device->clear(block, 4096, *stream); }},
  };
  const Live before = stand_in::live();
  const int64_t reserved = device->reserved_bytes();
  for (const auto& [call, what, statement] : cases) {
    SCOPED_TRACE(call);
    stand_in::fail_next(call, cudaErrorDevicesUnavailable);
    expect_error(Code::kDevice, {"CUDA: ", what, "cuda:1", "cudaErrorDevicesUnavailable", "as the"},
                 statement);
    stand_in::fail_next(call, cudaErrorIllegalAddress);
    expect_error(Code::kDevice, {what, "cudaErrorIllegalAddress", "must be restarted"}, statement);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(stand_in::live(), before);
    EXPECT_EQ(device->reserved_bytes(), reserved);
  }
  device->deallocate(block, 4096, MemoryTag::kOther);
}

TEST_F(CudaStandIn, AFailedStartLeavesNothing) {
  stand_in::fail_next("cudaSetDevice", cudaErrorDevicesUnavailable);
  expect_error(Code::kDevice, {"cuda:0", "cudaErrorDevicesUnavailable"},
               [] { make_cuda_device(0); });
  stand_in::fail_next("cudaStreamCreateWithFlags", cudaErrorMemoryAllocation);
  expect_error(Code::kDevice, {"cuda:0", "cudaErrorMemoryAllocation"}, [] { make_cuda_device(0); });
  stand_in::hide_driver_calls();
  expect_error(Code::kDevice, {"driver", "cuCtxGetCurrent"}, [] { make_cuda_device(0); });
}

TEST_F(CudaStandIn, FreeingOnABrokenGpuIsQuiet) {
  auto device = make_cuda_device(0);
  void* const block = device->allocate(64, MemoryTag::kOther);
  device->deallocate(block, 64, MemoryTag::kOther);
  auto event = device->default_stream().record();
  // The driver refuses everything; nothing may throw from a destructor.
  for (int i = 0; i < 3; ++i) stand_in::fail_next("cudaSetDevice", cudaErrorIllegalAddress);
  event.reset();
  device.reset();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(stand_in::live(), (Live{.blocks = 1, .streams = 1, .events = 1}));
  stand_in::reset(2);  // gives back what the broken GPU kept
}

TEST_F(CudaStandIn, AnEmptyListSaysWhy) {
  const auto expect_reason = [](const std::vector<std::string>& parts) {
    std::string why_none;
    EXPECT_TRUE(list_cuda_devices(&why_none).empty());
    for (const std::string& part : parts) EXPECT_THAT(why_none, ::testing::HasSubstr(part));
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  };
  stand_in::set_driver_version(0);
  stand_in::fail_next("cudaGetDeviceCount", cudaErrorInsufficientDriver);
  expect_reason({"no NVIDIA driver"});
  stand_in::set_driver_version(11040);
  stand_in::fail_next("cudaGetDeviceCount", cudaErrorInsufficientDriver);
  expect_reason({"CUDA 11.4 at most", "needs " + cuda_runtime_version(), "update the driver"});
  stand_in::fail_next("cudaGetDeviceCount", cudaErrorInitializationError);
  expect_reason({"cannot start", "cudaErrorInitializationError"});
  stand_in::reset(0);
  expect_reason({"no GPU", "CUDA_VISIBLE_DEVICES"});
  expect_error(Code::kUnsupported, {"cuda:0 cannot be used", "no GPU"},
               [] { make_cuda_device(0); });
}

TEST_F(CudaStandIn, AGpuThatDoesNotAnswerIsListedAsSuch) {
  stand_in::fail_next("cudaGetDeviceProperties", cudaErrorDevicesUnavailable);
  const auto devices = list_cuda_devices();
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_THAT(devices[0].name, ::testing::HasSubstr("unreadable: cudaErrorDevicesUnavailable"));
  EXPECT_EQ(devices[0].memory_bytes, 0);
  EXPECT_EQ(devices[1].name, "Stand-in");
  EXPECT_EQ(devices[1].compute_major, 9);
}

}  // namespace
}  // namespace ds
