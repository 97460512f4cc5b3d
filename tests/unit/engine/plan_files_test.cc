// What arrays in files take of memory, as plans count it.
#include "engine/plan_files.h"

#include <gtest/gtest.h>

#include "device/counting_device.h"

namespace ds {
namespace {

// Of a range that begins in memory and ends in the file the file's part is read into pages of its
// own, and what joins both lies in the arena, as in a run.
TEST(FileMemory, WhatJoinsMemoryWithAFileLiesInTheArena) {
  constexpr int64_t kStay = int64_t{1} << 18, kElements = int64_t{1} << 20, kBytes = 4 * kElements;
  const auto device = std::make_shared<CountingDevice>();
  const std::shared_ptr<Device> buffers = CountingDevice::own_pages(device);
  const Tensor aside = Tensor::empty(std::make_shared<CountingDevice>(), DType::kFloat32,
                                     {kElements}, MemoryTag::kOther);
  const auto files =
      std::make_shared<FileMemory>(device, buffers, io::FileArrayOptions{}, kBytes, kStay, aside);
  const auto arena = [&] { return device->reserved_bytes() - buffers->reserved_bytes(); };

  EXPECT_EQ(files->take(DType::kFloat32, kStay, 0).elements(), kStay);  // in memory, counted there
  EXPECT_EQ(device->reserved_bytes(), 0);
  {
    const Tensor in_file = files->take(DType::kFloat32, kElements, kStay);
    EXPECT_EQ(in_file.elements(), kElements);
    EXPECT_GE(buffers->reserved_bytes(), kBytes);
    EXPECT_EQ(arena(), 0);
  }
  const int64_t before = buffers->reserved_bytes();
  const Tensor both = files->take(DType::kFloat32, kElements, 0);
  EXPECT_EQ(both.elements(), kElements);
  EXPECT_EQ(buffers->reserved_bytes(), before);  // the same pages again
  EXPECT_GE(arena(), kBytes);
}

}  // namespace
}  // namespace ds
