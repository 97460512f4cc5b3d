// I/O memory: alignment, accounting, reuse, and the copy past the caches.
#include "io/buffer.h"

#include <cstring>

#include "fresh_seed.h"
#include "unit/io/support.h"

namespace ds::io::test {
namespace {

TEST(IoBuffer, IsAlignedCountedAndGivenBack) {
  MemoryAccount account;
  {
    Buffer small(5000, &account), large(3 << 20, &account);
    EXPECT_EQ(small.size(), 8192);
    EXPECT_EQ(large.size(), 3 << 20);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(small.data()) % kAlignment, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data()) % (2 << 20), 0u);
    std::memset(large.data(), 7, static_cast<size_t>(large.size()));
    EXPECT_EQ(account.now(MemoryTag::kIo), 8192 + (3 << 20));
    Buffer moved = std::move(large);
    EXPECT_FALSE(large);
    EXPECT_EQ(moved.data()[12345], std::byte{7});
    EXPECT_EQ(account.now(MemoryTag::kIo), 8192 + (3 << 20));
  }
  EXPECT_EQ(account.now(MemoryTag::kIo), 0);
  EXPECT_EQ(error_of([] { Buffer impossible(int64_t{1} << 60); }).code(), Code::kOutOfMemory);
}

TEST(IoBuffer, APoolGivesKeptBuffersAgain) {
  MemoryAccount account;
  {
    BufferPool pool(1 << 16, &account);
    Buffer a = pool.take();
    const std::byte* const place = a.data();
    pool.give(std::move(a));
    EXPECT_EQ(account.now(MemoryTag::kIo), 1 << 16);
    Buffer b = pool.take();
    EXPECT_EQ(b.data(), place);
    EXPECT_NE(pool.take().data(), place);
    pool.give(std::move(b));
  }
  EXPECT_EQ(account.now(MemoryTag::kIo), 0);
}

TEST(IoBuffer, StreamCopyCopiesExactlyItsBytes) {
  SCOPED_TRACE("DS_TEST_SEED=" + std::to_string(ds::run_seed()));
  std::mt19937_64 rng(ds::run_seed());
  std::vector<std::byte> from(40'000), to(40'000), expected(40'000);
  fill_random(from, rng);
  for (int i = 0; i < 300; ++i) {
    fill_random(std::span(to).first(64), rng);
    expected = to;
    const size_t n = rng() % (i % 2 == 0 ? 20'000 : 200);
    const size_t a = rng() % 200, b = rng() % 200;
    std::memcpy(expected.data() + b, from.data() + a, n);
    stream_copy(to.data() + b, from.data() + a, n);
    ASSERT_EQ(to, expected) << n << " bytes from " << a << " to " << b;
  }
}

}  // namespace
}  // namespace ds::io::test
