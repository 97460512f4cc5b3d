// Memory that threads ask the system for: ready from the front, as far as is wanted, and no thread
// writes what is ready.
#include "io/prepared_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ds::io {
namespace {

constexpr int64_t kMega = 1 << 20;

class PreparedBufferTest : public ::testing::TestWithParam<int> {};

TEST_P(PreparedBufferTest, IsReadyFromTheFrontAndKeepsWhatIsWritten) {
  PreparedBuffer buffer(41 * kMega + 4097, GetParam());
  ASSERT_GE(buffer.bytes().size(), static_cast<size_t>(41 * kMega + 4097));
  const auto size = static_cast<int64_t>(buffer.bytes().size());
  for (int64_t at = 0; at < size;) {
    buffer.wait_for(at + 1);
    const int64_t ready = buffer.ready();
    ASSERT_GT(ready, at);
    ASSERT_LE(ready, size);
    std::fill(buffer.bytes().begin() + at, buffer.bytes().begin() + ready, std::byte{9});
    at = ready;
  }
  EXPECT_TRUE(std::all_of(buffer.bytes().begin(), buffer.bytes().end(),
                          [](std::byte b) { return b == std::byte{9}; }));
  if (GetParam() > 0) {
    EXPECT_GT(buffer.rate(), 0);
  }
}

TEST_P(PreparedBufferTest, StopsAtALimitUntilSomebodyWaits) {
  PreparedBuffer buffer(64 * kMega, GetParam());
  buffer.limit(0);
  buffer.limit(10 * kMega);
  buffer.wait_for(10 * kMega);
  EXPECT_GE(buffer.ready(), 10 * kMega);
  buffer.wait_for(1000 * kMega);  // all there is
  EXPECT_EQ(buffer.ready(), 64 * kMega);
}

TEST_P(PreparedBufferTest, EndsWhileItIsAskedFor) {
  for (int i = 0; i < 20; ++i) PreparedBuffer buffer(int64_t{1} << 32, GetParam());
  const PreparedBuffer none(0, GetParam());
  EXPECT_EQ(none.ready(), 0);
  EXPECT_EQ(none.bytes().size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Threads, PreparedBufferTest, ::testing::Values(0, 1, 2, 4));

}  // namespace
}  // namespace ds::io
