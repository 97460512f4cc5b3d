// Room in stores for bytes that come and go: places never overlap, and what is given back serves
// the next.
#include "tensor/store_room.h"
#include "fresh_seed.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace ds {
namespace {

constexpr int64_t kPage = 4096;

// Bytes in memory that are reached by leases alone.
class MemoryStore final : public ArrayStore {
 public:
  explicit MemoryStore(int64_t bytes)
      : ArrayStore(DType::kUInt8, bytes),
        memory_(Tensor::zeros(make_cpu_device(), DType::kUInt8, {bytes}, MemoryTag::kOther)) {}
  int64_t part_elements() const override { return elements(); }
  void flush() override { DS_CHECK(!broken, Code::kIo, "broken"); }
  bool broken = false;

 protected:
  Tensor open(int64_t begin, int64_t end, Access) override { return memory_.slice(0, begin, end); }
  void write_back(Tensor, int64_t) override {}
  void drop(Tensor) noexcept override {}

 private:
  const Tensor memory_;
};

struct Fixture {
  std::vector<std::shared_ptr<MemoryStore>> made;
  StoreRoom room{[this](int64_t bytes) {
                   made.push_back(std::make_shared<MemoryStore>(bytes));
                   return made.back();
                 },
                 10 * kPage};
};

TEST(StoreRoom, PlacesComeAndGoWithoutOverlapping) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  Fixture f;
  struct Held {
    StoreRoom::Place place;
    uint8_t value;
  };
  std::vector<Held> held;
  const auto check = [&](const Held& one) {
    ArrayLease lease = f.room.map(one.place, Access::kRead);
    ASSERT_EQ(lease.data().elements(), one.place.bytes);
    for (int64_t i = 0; i < one.place.bytes; ++i) {
      ASSERT_EQ(lease.data().data<uint8_t>()[i], one.value);
    }
  };
  for (int turn = 0; turn < 2000; ++turn) {
    if (held.size() < 12 && random() % 3 != 0) {
      const Held one{f.room.take(1 + random() % (6 * kPage)), static_cast<uint8_t>(random())};
      EXPECT_EQ(one.place.begin % kPage, 0);
      ArrayLease lease = f.room.map(one.place, Access::kWrite);
      std::memset(lease.data().raw(), one.value, static_cast<size_t>(one.place.bytes));
      lease.close();
      held.push_back(one);
    } else if (!held.empty()) {
      const size_t at = random() % held.size();
      check(held[at]);
      f.room.give(held[at].place);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  for (const Held& one : held) {
    check(one);
    f.room.give(one.place);
  }
  EXPECT_EQ(f.room.free_bytes(), f.room.bytes());
  // What is free is in one piece again.
  const size_t stores = f.made.size();
  for (size_t i = 0; i < stores; ++i) f.room.take(f.made[i]->elements());
  EXPECT_EQ(f.made.size(), stores);
  EXPECT_EQ(f.room.free_bytes(), 0);
}

TEST(StoreRoom, WhatIsLargerThanAStoreHasOneOfItsOwn) {
  Fixture f;
  const StoreRoom::Place small = f.room.take(1), large = f.room.take(11 * kPage - 1);
  EXPECT_EQ(f.made.size(), 2u);
  EXPECT_EQ(f.made[1]->elements(), 11 * kPage);
  EXPECT_EQ(large.store, 1u);
  EXPECT_EQ(small.store, 0u);
  EXPECT_EQ(f.room.take(9 * kPage).store, 0u);
}

TEST(StoreRoom, WhatCannotBeMadeTakesNothing) {
  int64_t asked = 0;
  StoreRoom room([&](int64_t bytes) -> std::shared_ptr<ArrayStore> {
    asked = bytes;
    fail(Code::kIo, "no room");
  });
  EXPECT_THROW(room.take(5), Error);
  EXPECT_EQ(asked, int64_t{64} << 20);
  EXPECT_EQ(room.bytes(), 0);
}

TEST(StoreRoom, FlushReachesEveryStoreAndTellsTheFirstError) {
  Fixture f;
  f.room.take(10 * kPage);
  f.room.take(10 * kPage);
  EXPECT_NO_THROW(f.room.flush());
  f.made[0]->broken = true;
  EXPECT_THROW(f.room.flush(), Error);
}

}  // namespace
}  // namespace ds
