// The handle table itself: numbers, entries, and many threads at once.
#include "capi/handle_table.h"

#include <gmock/gmock.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "fresh_seed.h"

namespace ds::capi {
namespace {

using ::testing::HasSubstr;

class Counted : public HandleObject {
 public:
  explicit Counted(std::atomic<int>& alive) : alive_(alive) { ++alive_; }
  ~Counted() override { --alive_; }

 private:
  std::atomic<int>& alive_;
};

std::string refusal(const HandleTable& table, uint64_t handle, HandleKind kind) {
  try {
    table.find(handle, kind, "thing");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.message();
  }
  return "";
}

TEST(HandleTable, NumbersAreNeverReusedAndNeverAddresses) {
  HandleTable table;
  std::atomic<int> alive{0};
  std::set<uint64_t> seen;
  for (int i = 0; i < 10000; ++i) {
    const uint64_t handle = table.insert(HandleKind::kTensor, std::make_shared<Counted>(alive));
    EXPECT_TRUE(seen.insert(handle).second);
    // Addresses have equal bits from 47 on.
    const uint64_t top = handle >> 47;
    EXPECT_TRUE(top != 0 && top != 0x1FFFF);
    EXPECT_NE(table.find(handle, HandleKind::kTensor, "thing"), nullptr);
    EXPECT_NE(table.remove(handle, HandleKind::kTensor), nullptr);
    EXPECT_EQ(table.remove(handle, HandleKind::kTensor), nullptr);
    EXPECT_THAT(refusal(table, handle, HandleKind::kTensor), HasSubstr("already destroyed"));
  }
  EXPECT_EQ(alive.load(), 0);
  EXPECT_EQ(table.live(HandleKind::kTensor), 0);
}

TEST(HandleTable, TellsMistakesApart) {
  HandleTable table;
  std::atomic<int> alive{0};
  const uint64_t handle = table.insert(HandleKind::kModel, std::make_shared<Counted>(alive));
  EXPECT_THAT(refusal(table, 0, HandleKind::kModel), HasSubstr("thing is NULL"));
  EXPECT_THAT(refusal(table, handle, HandleKind::kEngine),
              HasSubstr("of kind model; an engine handle"));
  EXPECT_THAT(refusal(table, handle ^ 0x10, HandleKind::kModel), HasSubstr("not a handle"));
  EXPECT_THAT(refusal(table, 0x7FFFDEADBEEF, HandleKind::kModel), HasSubstr("not a handle"));
  // The right number with a foreign kind was made up.
  const uint64_t forged = (handle & ~(uint64_t{0xFF} << 56)) | uint64_t{0xD1} << 56;
  EXPECT_THAT(refusal(table, forged, HandleKind::kTensor), HasSubstr("not a handle"));
  EXPECT_EQ(table.remove(forged, HandleKind::kTensor), nullptr);
  EXPECT_EQ(table.remove(handle, HandleKind::kEngine), nullptr);
  EXPECT_EQ(alive.load(), 1);
}

// Noise, and every live handle with one bit turned.
TEST(HandleTable, NumbersThatWereMadeUpFindNothing) {
  HandleTable table;
  std::atomic<int> alive{0};
  std::set<uint64_t> live;
  for (int i = 0; i < 100; ++i) {
    live.insert(table.insert(HandleKind::kTensor, std::make_shared<Counted>(alive)));
  }
  std::vector<uint64_t> made_up;
  for (const uint64_t handle : live) {
    for (int bit = 0; bit < 64; ++bit) made_up.push_back(handle ^ uint64_t{1} << bit);
  }
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(str_cat("seed ", seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 10000; ++i) made_up.push_back(random());
  for (const uint64_t handle : made_up) {
    if (live.contains(handle)) continue;
    for (int kind = 1; kind <= kHandleKinds; ++kind) {
      EXPECT_NE(refusal(table, handle, static_cast<HandleKind>(kind)), "");
    }
  }
}

TEST(HandleTable, EntriesExclude) {
  HandleObject object;
  ASSERT_TRUE(object.try_enter(true));
  EXPECT_TRUE(object.entered_by_this_thread());
  EXPECT_FALSE(object.try_enter(true));
  EXPECT_FALSE(object.try_enter(false));
  std::thread([&] {
    EXPECT_FALSE(object.try_enter(true));
    EXPECT_FALSE(object.entered_by_this_thread());
  }).join();
  object.leave(true);
  ASSERT_TRUE(object.try_enter(false));
  ASSERT_TRUE(object.try_enter(false));
  EXPECT_FALSE(object.try_enter(true));
  object.leave(false);
  EXPECT_FALSE(object.try_enter(true));
  object.leave(false);
  EXPECT_TRUE(object.try_enter(true));
  object.leave(true);
}

TEST(HandleTable, ManyThreads) {
  HandleTable table;
  std::atomic<int> alive{0};
  std::atomic<uint64_t> shared{table.insert(HandleKind::kTensor, std::make_shared<Counted>(alive))};
  std::atomic<bool> wrong{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        const uint64_t mine = table.insert(HandleKind::kTensor, std::make_shared<Counted>(alive));
        try {
          // Another thread's handle: alive, or refused cleanly.
          const auto object = table.find(shared.load(), HandleKind::kTensor, "thing");
          if (object->try_enter(true)) object->leave(true);
        } catch (const Error&) {
        }
        const uint64_t old = shared.exchange(mine);
        if (table.remove(old, HandleKind::kTensor) == nullptr) wrong = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(wrong.load());
  EXPECT_EQ(alive.load(), 1);
  EXPECT_EQ(table.live(HandleKind::kTensor), 1);
  EXPECT_NE(table.remove(shared.load(), HandleKind::kTensor), nullptr);
  EXPECT_EQ(alive.load(), 0);
}

}  // namespace
}  // namespace ds::capi
