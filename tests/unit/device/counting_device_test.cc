// Memory that is counted: at the places of the CPU's own, and not there.
#include "device/counting_device.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/system_memory.h"
#include "fresh_seed.h"
#include "full_run.h"

namespace ds {
namespace {

// Random requests: as much is held as of a real arena, and the fullest moment is kept by tag.
TEST(CountingDevice, HoldsWhatTheCpuHolds) {
  const auto seed = ds::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  CountingDevice counting;
  const auto real = make_cpu_device();
  struct Block {
    void *counted, *there;
    int64_t bytes;
    MemoryTag tag;
  };
  std::vector<Block> blocks;
  for (int i = 0; i < 400; ++i) {
    if (!blocks.empty() && random() % 2 == 0) {
      const size_t at = random() % blocks.size();
      counting.deallocate(blocks[at].counted, blocks[at].bytes, blocks[at].tag);
      real->deallocate(blocks[at].there, blocks[at].bytes, blocks[at].tag);
      blocks.erase(blocks.begin() + static_cast<int64_t>(at));
    } else {
      const auto bytes = static_cast<int64_t>(1 + random() % (random() % 8 == 0 ? 1 << 21 : 5000));
      const auto tag = static_cast<MemoryTag>(random() % kMemoryTags);
      blocks.push_back({counting.allocate(bytes, tag), real->allocate(bytes, tag), bytes, tag});
    }
    EXPECT_EQ(counting.reserved_bytes(), real->reserved_bytes());
    EXPECT_EQ(counting.account().total_now(), real->account().total_now());
  }
  int64_t fullest = 0;
  for (const int64_t bytes : counting.fullest()) fullest += bytes;
  EXPECT_EQ(fullest, real->account().total_peak());
  for (const Block& block : blocks) {
    counting.deallocate(block.counted, block.bytes, block.tag);
    real->deallocate(block.there, block.bytes, block.tag);
  }
}

// What has pages of its own leaves no places in the arena, and counts with the others.
TEST(CountingDevice, PagesOfTheirOwnLieBesideTheArena) {
  const auto device = std::make_shared<CountingDevice>();
  const std::shared_ptr<Device> own = CountingDevice::own_pages(device);
  const auto alone = std::make_shared<CountingDevice>();
  constexpr int64_t kBytes = 5 << 20;
  void* const first = own->allocate(kBytes, MemoryTag::kIo);
  void* const joined = device->allocate(kBytes, MemoryTag::kIo);
  void* const same = alone->allocate(kBytes, MemoryTag::kIo);
  EXPECT_EQ(device->reserved_bytes(), alone->reserved_bytes() + kBytes);
  EXPECT_EQ(device->account().now(MemoryTag::kIo), 2 * kBytes);
  own->deallocate(first, kBytes, MemoryTag::kIo);
  void* const second = own->allocate(kBytes / 2, MemoryTag::kIo);
  EXPECT_EQ(device->reserved_bytes(), alone->reserved_bytes() + kBytes);  // at the fullest moment
  EXPECT_EQ(device->account().total_peak(), 2 * kBytes);
  own->deallocate(second, kBytes / 2, MemoryTag::kIo);
  device->deallocate(joined, kBytes, MemoryTag::kIo);
  alone->deallocate(same, kBytes, MemoryTag::kIo);
  EXPECT_EQ(device->account().total_now(), 0);
}

TEST(CountingDevice, LargeRequestsTakeNoMemory) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers write down what every eight bytes are for";
  const int64_t before = process_status_bytes("VmRSS:");
  const int64_t process = process_account(false).total_now();
  constexpr int64_t kBytes = int64_t{1} << 36;
  CountingDevice device;
  auto* const large = static_cast<char*>(device.allocate(kBytes, MemoryTag::kParameters));
  device.clear(large, kBytes, device.default_stream());
  EXPECT_EQ(large[kBytes - 1], 0);
  EXPECT_LT(process_status_bytes("VmRSS:") - before, 64 << 20);
  EXPECT_EQ(process_account(false).total_now(), process);
  device.deallocate(large, kBytes, MemoryTag::kParameters);
}

}  // namespace
}  // namespace ds
