// The arena under fragmentation: what live places hold stays as it was, places do not overlap, free
// neighbours join, and the same requests get the same places. Nothing is ever moved: pointers into
// the arena stay good.
#include "device/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "base/text.h"
#include "fresh_seed.h"

namespace ds {
namespace {

// A place, and the bytes that it shall hold.
struct Held {
  std::byte* at = nullptr;
  int64_t bytes = 0;
  uint8_t fill = 0;
};

void fill(const Held& held) { std::memset(held.at, held.fill, static_cast<size_t>(held.bytes)); }

bool intact(const Held& held) {
  for (int64_t i = 0; i < held.bytes; ++i) {
    if (held.at[i] != std::byte{held.fill}) return false;
  }
  return true;
}

// By address; places that overlap fail the test.
void expect_apart(const std::vector<Held>& all) {
  std::map<const std::byte*, int64_t> places;
  for (const Held& held : all) places[held.at] = held.bytes;
  ASSERT_EQ(places.size(), all.size());
  const std::byte* end = nullptr;
  for (const auto& [at, bytes] : places) {
    ASSERT_GE(at, end);
    end = at + bytes;
  }
}

int64_t drawn_size(std::mt19937& random) {
  switch (random() % 3) {
    case 0:
      return 1 + static_cast<int64_t>(random() % 200);
    case 1:
      return 1 + static_cast<int64_t>(random() % 20000);
    default:
      return 1 + static_cast<int64_t>(random() % 2'500'000);
  }
}

TEST(Arena, LiveContentsSurviveFragmentation) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(str_cat("seed ", seed));
  std::mt19937 random(seed);
  Arena arena(0);
  std::vector<Held> live;
  for (int round = 0; round < 600; ++round) {
    if (live.size() < 40 && random() % 5 < 3) {
      Held held{nullptr, drawn_size(random), static_cast<uint8_t>(random())};
      held.at = static_cast<std::byte*>(arena.allocate(held.bytes));
      ASSERT_NE(held.at, nullptr);
      fill(held);
      live.push_back(held);
    } else if (!live.empty()) {
      const size_t i = random() % live.size();
      ASSERT_TRUE(intact(live[i])) << "round " << round;
      arena.deallocate(live[i].at, live[i].bytes);
      live[i] = live.back();
      live.pop_back();
    }
    if (round % 100 == 99) {
      arena.trim();
      expect_apart(live);
      for (const Held& held : live) ASSERT_TRUE(intact(held)) << "after a trim, round " << round;
    }
  }
  for (const Held& held : live) {
    EXPECT_TRUE(intact(held));
    arena.deallocate(held.at, held.bytes);
  }
}

// A request that no hole holds lies elsewhere, and nothing moves for it; once the places between
// the holes are free, they are one place again, from the beginning.
TEST(Arena, HolesAreNotJoinedByMovingButByFreeing) {
  constexpr int64_t kPlace = int64_t{256} << 10;
  constexpr size_t kCount = 16;
  Arena arena(0);
  std::vector<Held> all;
  for (size_t i = 0; i < kCount; ++i) {
    all.push_back(
        {static_cast<std::byte*>(arena.allocate(kPlace)), kPlace, static_cast<uint8_t>(i + 1)});
    fill(all.back());
  }
  for (size_t i = 0; i < kCount; i += 2) arena.deallocate(all[i].at, kPlace);
  auto* const large = static_cast<std::byte*>(arena.allocate(2 * kPlace));
  for (const Held& held : all) EXPECT_TRUE(large >= held.at + kPlace || large + kPlace <= held.at);
  for (size_t i = 1; i < kCount; i += 2) EXPECT_TRUE(intact(all[i])) << i;
  // A hole's own size fits the lowest one.
  EXPECT_EQ(arena.allocate(kPlace), all[0].at);
  arena.deallocate(all[0].at, kPlace);
  for (size_t i = 1; i < kCount; i += 2) arena.deallocate(all[i].at, kPlace);
  const int64_t held = arena.held_bytes();
  EXPECT_EQ(arena.allocate(kPlace * static_cast<int64_t>(kCount)), all[0].at);
  EXPECT_EQ(arena.held_bytes(), held) << "no new memory";
  arena.deallocate(all[0].at, kPlace * static_cast<int64_t>(kCount));
  arena.deallocate(large, 2 * kPlace);
}

TEST(Arena, TheSameRequestsGetTheSamePlaces) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(str_cat("seed ", seed));
  Arena arena(0);
  std::vector<void*> first;
  int64_t grown = 0;
  for (int step = 0; step < 3; ++step) {
    std::mt19937 random(seed);
    std::vector<Held> live;
    std::vector<void*> places;
    for (int i = 0; i < 200; ++i) {
      if (live.size() < 20 && random() % 2 == 0) {
        const int64_t bytes = drawn_size(random);
        live.push_back({static_cast<std::byte*>(arena.allocate(bytes)), bytes, 0});
        places.push_back(live.back().at);
      } else if (!live.empty()) {
        const size_t at = random() % live.size();
        arena.deallocate(live[at].at, live[at].bytes);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    for (const Held& held : live) arena.deallocate(held.at, held.bytes);
    if (step == 0) {
      first = places;
      grown = arena.times_grown();
    }
    EXPECT_EQ(places, first) << "step " << step;
    EXPECT_EQ(arena.times_grown(), grown);
  }
}

}  // namespace
}  // namespace ds
