// How the CUDA device behaves, where there is one. Linked twice: with the CUDA runtime (skipped on
// a machine without a GPU) and with the stand-in of emulation/stand_in.h.
#include "device/cuda_device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda_lent.h"
#include "fresh_seed.h"
#include "unit/base/expect_error.h"

namespace ds {
namespace {

using testing::expect_error;
using Bytes = std::vector<unsigned char>;

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_none;
    if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
    device_ = make_cuda_device(0);
    random_.seed(seed_);
  }
  void TearDown() override {
    if (HasFailure()) std::cout << "seed " << seed_ << "\n";
  }

  Bytes random_bytes(size_t size) {
    Bytes bytes(size);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random_());
    return bytes;
  }

  // What lies in the device's memory once its default stream has come that far.
  Bytes read(const void* from, size_t size) {
    Bytes bytes(size, 0x5C);
    device_->copy(bytes.data(), from, static_cast<int64_t>(size), device_->default_stream());
    device_->default_stream().synchronize();
    return bytes;
  }

  std::shared_ptr<CudaDevice> device_;
  const uint64_t seed_ = ds::fresh_seed();
  std::mt19937 random_;
};

unsigned char* at(void* memory, int64_t offset) {
  return static_cast<unsigned char*>(memory) + offset;
}

TEST_F(CudaDeviceTest, ListDescribesEveryGpu) {
  const auto devices = list_cuda_devices();
  for (size_t i = 0; i < devices.size(); ++i) {
    EXPECT_EQ(devices[i].index, static_cast<int>(i));
    EXPECT_FALSE(devices[i].name.empty());
    EXPECT_GT(devices[i].memory_bytes, 0);
    EXPECT_GT(devices[i].compute_major, 0);
    EXPECT_GT(devices[i].multiprocessors, 0);
  }
  EXPECT_FALSE(cuda_driver_version().empty());
  EXPECT_EQ(device_->kind(), DeviceKind::kCuda);
  EXPECT_EQ(device_->index(), 0);
  EXPECT_EQ(device_->describe(), "cuda:0 (" + devices[0].name + ")");
}

TEST_F(CudaDeviceTest, OtherIndicesAreRefused) {
  const int count = static_cast<int>(list_cuda_devices().size());
  for (const int index : {-1, count, INT32_MAX, INT32_MIN}) {
    expect_error(Code::kInvalidArgument, {"cuda:" + std::to_string(index), "does not exist"},
                 [&] { make_cuda_device(index); });
  }
}

TEST_F(CudaDeviceTest, MemoryIsAlignedAndCounted) {
  int64_t expected = 0;
  std::vector<std::pair<void*, int64_t>> blocks;
  for (const int64_t bytes : {1, 255, 256, 4097, 100000, (4 << 20) + 1}) {
    void* const block = device_->allocate(bytes, MemoryTag::kGradients);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 256, 0u);
    blocks.emplace_back(block, bytes);
    expected += bytes;
  }
  EXPECT_GE(device_->account().now(MemoryTag::kGradients), expected);
  EXPECT_EQ(device_->account().now(MemoryTag::kOther), 0);
  EXPECT_EQ(device_->reserved_bytes(), device_->account().total_now());
  for (const auto& [block, bytes] : blocks) {
    device_->deallocate(block, bytes, MemoryTag::kGradients);
  }
  EXPECT_EQ(device_->account().total_now(), 0);
  EXPECT_GE(device_->account().peak(MemoryTag::kGradients), expected);
  EXPECT_EQ(device_->allocate(0, MemoryTag::kOther), nullptr);
  device_->deallocate(nullptr, 0, MemoryTag::kOther);
}

// Also between two places of the GPU, where cudaMemcpy returns before the copy has ended: streams
// of the device do not wait for that.
TEST_F(CudaDeviceTest, LentMemoryHasArrivedWhenTheCallReturns) {
  constexpr int64_t kSize = (8 << 20) + 3;
  void* const from = device_->allocate(kSize, MemoryTag::kOther);
  void* const to = device_->allocate(kSize, MemoryTag::kOther);
  const Bytes bytes = random_bytes(kSize);
  copy_lent_cuda(0, from, bytes.data(), kSize);
  EXPECT_EQ(read(from, kSize), bytes);
  copy_lent_cuda(0, to, from, kSize);
  EXPECT_EQ(read(to, kSize), bytes);
  Bytes back(kSize);
  copy_lent_cuda(0, back.data(), to, kSize);
  EXPECT_EQ(back, bytes);
  device_->deallocate(from, kSize, MemoryTag::kOther);
  device_->deallocate(to, kSize, MemoryTag::kOther);
}

TEST_F(CudaDeviceTest, FreedBlocksAreReusedUntilTrimmed) {
  void* const first = device_->allocate(100000, MemoryTag::kActivations);
  device_->deallocate(first, 100000, MemoryTag::kActivations);
  void* const second = device_->allocate(99000, MemoryTag::kWorkspace);
  EXPECT_EQ(second, first);
  EXPECT_EQ(device_->system_allocations(), 1);
  device_->deallocate(second, 99000, MemoryTag::kWorkspace);
  EXPECT_GE(device_->reserved_bytes(), 100000);
  device_->trim();
  EXPECT_EQ(device_->reserved_bytes(), 0);
}

TEST_F(CudaDeviceTest, WithoutACacheMemoryGoesBackAtOnce) {
  device_ = make_cuda_device(0, {.cache = false});
  void* const block = device_->allocate(5000, MemoryTag::kOther);
  EXPECT_GT(device_->reserved_bytes(), 0);
  device_->deallocate(block, 5000, MemoryTag::kOther);
  EXPECT_EQ(device_->reserved_bytes(), 0);
}

TEST_F(CudaDeviceTest, TheLimitGivesAnErrorWithAccountAndAdvice) {
  device_ = make_cuda_device(0, {.cache = true, .limit_bytes = 1 << 20});
  void* const held = device_->allocate(600000, MemoryTag::kParameters);
  expect_error(Code::kOutOfMemory,
               {"out of memory on cuda:0 (", "are free", "activations", "limit of 1.00 MiB",
                "parameters", "total", "train_micro_batch_size_per_gpu"},
               [&] { device_->allocate(600000, MemoryTag::kActivations); });
  EXPECT_EQ(device_->account().now(MemoryTag::kActivations), 0);
  device_->deallocate(held, 600000, MemoryTag::kParameters);
  // The cached block is of another size: it is given up for this one.
  void* const large = device_->allocate(900000, MemoryTag::kActivations);
  EXPECT_NE(large, nullptr);
  device_->deallocate(large, 900000, MemoryTag::kActivations);
}

TEST_F(CudaDeviceTest, MoreThanTheGpuHasIsOutOfMemory) {
  for (const int64_t bytes : {int64_t{1} << 49, int64_t{1} << 50, INT64_MAX, int64_t{-1}}) {
    expect_error(Code::kOutOfMemory, {"optimizer"},
                 [&] { device_->allocate(bytes, MemoryTag::kOptimizer); });
  }
  EXPECT_EQ(device_->reserved_bytes(), 0);
  // The device is as good as before.
  void* const block = device_->allocate(1000, MemoryTag::kOther);
  device_->clear(block, 1000, device_->default_stream());
  EXPECT_EQ(read(block, 1000), Bytes(1000, 0));
  device_->deallocate(block, 1000, MemoryTag::kOther);
}

TEST_F(CudaDeviceTest, CopiesThereAcrossAndBack) {
  Stream& stream = device_->default_stream();
  for (const size_t size : {size_t{1}, size_t{3}, size_t{4096}, size_t{1000003}}) {
    const auto bytes = static_cast<int64_t>(size);
    const Bytes source = random_bytes(size);
    void* const first = device_->allocate(bytes, MemoryTag::kOther);
    void* const second = device_->allocate(bytes, MemoryTag::kOther);
    device_->copy(first, source.data(), bytes, stream);
    device_->copy(second, first, bytes, stream);
    EXPECT_EQ(read(second, size), source) << size;
    // Part of it.
    device_->clear(at(second, bytes / 2), bytes - bytes / 2, stream);
    Bytes expected = source;
    std::memset(expected.data() + size / 2, 0, size - size / 2);
    EXPECT_EQ(read(second, size), expected) << size;
    EXPECT_EQ(read(first, size), source) << size;
    device_->deallocate(first, bytes, MemoryTag::kOther);
    device_->deallocate(second, bytes, MemoryTag::kOther);
  }
  device_->copy(nullptr, nullptr, 0, stream);
  device_->clear(nullptr, 0, stream);
}

TEST_F(CudaDeviceTest, EventsOrderStreams) {
  const size_t size = 8 << 20;
  const auto bytes = static_cast<int64_t>(size);
  const Bytes source = random_bytes(size);
  void* const first = device_->allocate(bytes, MemoryTag::kOther);
  void* const second = device_->allocate(bytes, MemoryTag::kOther);
  const auto up = device_->create_stream();
  const auto down = device_->create_stream();
  EXPECT_NE(up->native(), nullptr);
  EXPECT_NE(up->native(), down->native());
  EXPECT_NE(device_->default_stream().native(), up->native());

  device_->copy(first, source.data(), bytes, *up);
  const auto copied = up->record();
  down->wait(*copied);
  device_->copy(second, first, bytes, *down);
  Bytes result(size);
  device_->copy(result.data(), second, bytes, *down);
  const auto done = down->record();
  done->synchronize();
  EXPECT_TRUE(done->ready());
  EXPECT_TRUE(copied->ready());
  EXPECT_EQ(result, source);
  up->synchronize();
  device_->deallocate(first, bytes, MemoryTag::kOther);
  device_->deallocate(second, bytes, MemoryTag::kOther);
}

TEST_F(CudaDeviceTest, EventsOutliveTheirStreamAndDevice) {
  auto stream = device_->create_stream();
  const auto event = stream->record();
  stream.reset();
  device_.reset();
  event->synchronize();
  EXPECT_TRUE(event->ready());
}

TEST_F(CudaDeviceTest, WhatIsNotOfThisDeviceIsRefused) {
  const auto cpu = make_cpu_device();
  void* const block = device_->allocate(64, MemoryTag::kOther);
  Bytes host(64);
  expect_error(Code::kInvalidArgument, {"copy", "cuda:0", "stream of another device"},
               [&] { device_->copy(block, host.data(), 64, cpu->default_stream()); });
  expect_error(Code::kInvalidArgument, {"clear", "stream of another device"},
               [&] { device_->clear(block, 64, cpu->default_stream()); });
  expect_error(Code::kInvalidArgument, {"copy", "-1 bytes"},
               [&] { device_->copy(block, host.data(), -1, device_->default_stream()); });
  // Work of the CPU device is done when it is recorded.
  device_->default_stream().wait(*cpu->default_stream().record());
  device_->deallocate(block, 64, MemoryTag::kOther);
}

TEST_F(CudaDeviceTest, ThreadsShareIt) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto stream = device_->create_stream();
      for (int i = 0; i < 50; ++i) {
        const int64_t bytes = 64 + (i * 37 + t * 1000) % 9000;
        const Bytes source(static_cast<size_t>(bytes), static_cast<unsigned char>(t * 50 + i));
        Bytes result(source.size());
        void* const block = device_->allocate(bytes, MemoryTag::kOther);
        device_->copy(block, source.data(), bytes, *stream);
        device_->copy(result.data(), block, bytes, *stream);
        stream->synchronize();
        EXPECT_EQ(result, source);
        device_->deallocate(block, bytes, MemoryTag::kOther);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device_->account().total_now(), 0);
}

}  // namespace
}  // namespace ds
