// Memory that is kept for the next use: what is taken again is not made again, and keeping needs no
// more memory than was in use at once.
#include "io/spare_memory.h"
#include "fresh_seed.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace ds::io {
namespace {

// Counts the bytes that there are.
class Counted {
 public:
  Counted() = default;
  Counted(int64_t bytes, int64_t* live) : bytes_(bytes), live_(live) { *live_ += bytes_; }
  ~Counted() {
    if (live_ != nullptr) *live_ -= bytes_;
  }
  Counted(Counted&& other) noexcept { *this = std::move(other); }
  Counted& operator=(Counted&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(live_, other.live_);
    return *this;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
  int64_t* live_ = nullptr;
};

constexpr int64_t kPart = 1 << 20;

TEST(SpareMemory, WhatComesBackIsTakenAgain) {
  int64_t live = 0, made = 0;
  SpareMemory<Counted> spare(kPart);
  const auto make = [&](int64_t size) {
    ++made;
    return Counted(size, &live);
  };
  // As an update goes through its parts: two at a time, of three arrays.
  std::vector<Counted> taken;
  for (int i = 0; i < 50; ++i) {
    for (int k = 0; k < 3; ++k) taken.push_back(spare.take(kPart - i, make));
    if (i == 0) continue;
    for (int k = 0; k < 3; ++k) {
      spare.give(std::move(taken.front()), kPart - (i - 1));
      taken.erase(taken.begin());
    }
  }
  EXPECT_EQ(made, 6);
  for (Counted& one : taken) spare.give(std::move(one), kPart - 49);
  EXPECT_EQ(live, 6 * kPart);
  spare.clear(4 * kPart);
  EXPECT_EQ(live, 4 * kPart);
  spare.clear();
  EXPECT_EQ(live, 0);
}

TEST(SpareMemory, LargerPiecesAreNotKept) {
  int64_t live = 0;
  SpareMemory<Counted> spare(kPart);
  spare.give(spare.take(2 * kPart, [&](int64_t size) { return Counted(size, &live); }), 2 * kPart);
  EXPECT_EQ(live, 0);
}

TEST(SpareMemory, WhatCannotBeMadeIsNotTaken) {
  int64_t live = 0;
  SpareMemory<Counted> spare(kPart);
  const auto fails = [](int64_t) -> Counted { throw std::runtime_error("no memory"); };
  EXPECT_THROW(spare.take(kPart, fails), std::runtime_error);
  Counted one = spare.take(kPart, [&](int64_t size) { return Counted(size, &live); });
  spare.give(std::move(one), kPart);
  EXPECT_EQ(live, kPart);
}

TEST(SpareMemory, NeverHoldsMoreThanWasInUseAtOnce) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int64_t live = 0, in_use = 0, most = 0;
  SpareMemory<Counted> spare(kPart);
  std::vector<std::pair<Counted, int64_t>> taken;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 500 == 0) {
      spare.clear();
      most = in_use;
      ASSERT_EQ(live, in_use);
    } else if (taken.size() < 12 && random() % 2 == 0) {
      const auto bytes = static_cast<int64_t>(random() % (2 * kPart)) + 1;
      taken.emplace_back(spare.take(bytes, [&](int64_t size) { return Counted(size, &live); }),
                         bytes);
      const int64_t size = taken.back().first.bytes();
      ASSERT_EQ(size, SpareMemory<Counted>::size_class(bytes));
      ASSERT_GE(size, bytes);
      ASSERT_LE(size, bytes + bytes / 8 + kAlignment);
      in_use += size;
      most = std::max(most, in_use);
    } else if (!taken.empty()) {
      const size_t one = random() % taken.size();
      in_use -= taken[one].first.bytes();
      spare.give(std::move(taken[one].first), taken[one].second);
      taken.erase(taken.begin() + static_cast<int64_t>(one));
    }
    ASSERT_LE(live, most) << i;
  }
}

}  // namespace
}  // namespace ds::io
