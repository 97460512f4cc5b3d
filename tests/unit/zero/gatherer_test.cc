// Which weights are gathered, kept and fetched ahead, on a way that notes what it is asked for.
#include "zero/weight_gatherer.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "device/device.h"

namespace ds::zero {
namespace {

using ::testing::ElementsAre;
using Limits = WeightGatherer::Limits;

constexpr int64_t kSize = 64;  // of every bucket

// What is asked for: "start 3", "finish 3", "abandon 3", "changed".
class NotedRoute : public BucketRoute {
 public:
  explicit NotedRoute(std::vector<std::string>& calls) : calls_(calls) {}
  Flight start(size_t bucket, Tensor&, const CollectiveOptions&) override {
    calls_.push_back("start " + std::to_string(bucket));
    Flight flight;
    flight.reading = true;
    return flight;
  }
  void finish(size_t bucket, Flight& flight, Tensor& whole, const CollectiveOptions&) override {
    calls_.push_back("finish " + std::to_string(bucket));
    if (calls_.back() == fails) fail(Code::kComm, "a rank is gone");
    flight = {};
    whole = Tensor::zeros(device_, DType::kFloat32, {kSize}, MemoryTag::kOther);
    *whole.data<float>() = static_cast<float>(bucket);
  }
  void abandon(size_t bucket, Flight& flight, Tensor&) override {
    calls_.push_back("abandon " + std::to_string(bucket));
    flight = {};
  }
  void pieces_changed(bool frozen_too) override {
    calls_.push_back(frozen_too ? "all changed" : "changed");
  }
  std::string fails;

 private:
  std::vector<std::string>& calls_;
  std::shared_ptr<Device> device_ = make_cpu_device();
};

class Gatherer : public ::testing::Test {
 protected:
  // Six buckets, of which the last is resident.
  Gatherer() : layout_(parameters(), sharing()) {
    EXPECT_EQ(layout_.buckets().size(), 6U);
    for (const Bucket& bucket : layout_.buckets()) {
      EXPECT_EQ(bucket.range.elements(), kSize);
      EXPECT_EQ(bucket.resident, &bucket == &layout_.buckets().back());
    }
  }
  static const nn::ParameterSet& parameters() {
    static const nn::ParameterSet all = [] {
      nn::ParameterSet out;
      for (int i = 0; i < 6; ++i) {
        nn::Parameter p;
        p.name = "p" + std::to_string(i);
        p.shape = {kSize};
        out.add(p);
      }
      return out;
    }();
    return all;
  }
  static Sharing sharing() {
    Sharing out;
    out.bucket_elements = 1;
    out.resident = {false, false, false, false, false, true};
    return out;
  }
  void limit(const Limits& limits) {
    auto route = std::make_unique<NotedRoute>(calls_);
    route_ = route.get();
    gatherer_.emplace(layout_, std::move(route), limits);
  }
  void use(size_t bucket) {
    const Tensor& data = gatherer_->acquire(bucket);
    EXPECT_EQ(*data.data<float>(), static_cast<float>(bucket));
    gatherer_->release(bucket);
  }
  // Uses of one pass; gives what was asked for in it.
  std::vector<std::string> pass(const std::vector<size_t>& order) {
    calls_.clear();
    gatherer_->begin_pass();
    for (const size_t bucket : order) use(bucket);
    std::vector<std::string> out = calls_;
    gatherer_->end_pass();
    return out;
  }
  std::vector<size_t> starts(const std::vector<size_t>& order) {
    std::vector<size_t> out;
    for (const std::string& call : pass(order)) {
      if (call.rfind("start ", 0) == 0) out.push_back(std::stoul(call.substr(6)));
    }
    return out;
  }

  FlatLayout layout_;
  std::vector<std::string> calls_;
  NotedRoute* route_ = nullptr;
  std::optional<WeightGatherer> gatherer_;
};

TEST_F(Gatherer, NothingIsFetchedAheadBeforeTheOrderIsKnown) {
  limit({});
  EXPECT_THAT(pass({0, 1, 0, 2}),
              ElementsAre("start 0", "finish 0", "start 1", "finish 1", "start 2", "finish 2"));
}

TEST_F(Gatherer, OnceItIsKnownAsMuchIsUnderWayAsIsAllowed) {
  limit({.prefetch = 2 * kSize});
  pass({0, 1, 2, 3, 4});
  EXPECT_THAT(pass({0, 1, 2, 3, 4}),
              ElementsAre("start 0", "start 1", "start 2", "finish 0", "start 3", "finish 1",
                          "start 4", "finish 2", "finish 3", "finish 4"));
}

// Whatever the numbers of the buckets are.
TEST_F(Gatherer, WhatIsUnderWayCountsUntilItIsWaitedFor) {
  limit({.prefetch = 2 * kSize});
  pass({3, 3, 3, 0, 1, 2, 4});
  calls_.clear();
  gatherer_->begin_pass();
  for (int i = 0; i < 3; ++i) use(3);
  EXPECT_THAT(calls_, ElementsAre("start 3", "start 0", "start 1", "finish 3"));
  calls_.clear();
  use(0);
  EXPECT_THAT(calls_, ElementsAre("start 2", "finish 0"));
  gatherer_->drop_pass();
}

TEST_F(Gatherer, AnotherOrderEndsFetchingAhead) {
  limit({.prefetch = kSize});
  pass({0, 1, 2, 3});
  EXPECT_THAT(pass({0, 2, 3, 1}), ElementsAre("start 0", "start 1", "finish 0", "start 2",
                                              "finish 2", "start 3", "finish 3", "finish 1"));
  // And is the known one from then on.
  EXPECT_THAT(starts({0, 2, 3, 1}), ElementsAre(0, 2, 3, 1));
  EXPECT_THAT(pass({0, 2, 3, 1}), ElementsAre("start 0", "start 2", "finish 0", "start 3",
                                              "finish 2", "start 1", "finish 3", "finish 1"));
}

TEST_F(Gatherer, TheLimitDropsWhatWasUsedLongestAgo) {
  limit({.live = 3 * kSize});
  EXPECT_THAT(starts({0, 1, 2, 3, 1, 0, 3, 2}), ElementsAre(0, 1, 2, 3, 0, 2));
  EXPECT_EQ(gatherer_->most_live(), 3 * kSize);
}

TEST_F(Gatherer, OnceTheOrderIsKnownItDropsWhatIsUsedLast) {
  limit({.live = 3 * kSize, .prefetch = 0});
  const std::vector<size_t> order = {0, 1, 2, 3, 0, 2, 1};
  EXPECT_THAT(starts(order), ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_THAT(starts(order), ElementsAre(0, 1, 2, 3, 1));
  EXPECT_EQ(gatherer_->most_live(), 3 * kSize);
}

TEST_F(Gatherer, FetchingAheadKeepsWithinTheLimit) {
  limit({.live = 2 * kSize, .reuse = 0, .prefetch = 4 * kSize});
  pass({0, 1, 2, 3});
  EXPECT_THAT(pass({0, 1, 2, 3}), ElementsAre("start 0", "start 1", "finish 0", "start 2",
                                              "finish 1", "start 3", "finish 2", "finish 3"));
  EXPECT_EQ(gatherer_->most_live(), 2 * kSize);
}

TEST_F(Gatherer, FewerUsesAfterEachOtherAreTheSameOrder) {
  limit({.prefetch = kSize});
  pass({0, 0, 1, 2});
  EXPECT_THAT(pass({0, 1, 2}),
              ElementsAre("start 0", "start 1", "finish 0", "start 2", "finish 1", "finish 2"));
}

TEST_F(Gatherer, WhatIsInUseStaysWhateverTheLimit) {
  limit({.live = 2 * kSize});
  gatherer_->begin_pass();
  for (const size_t bucket : {0, 1, 2}) gatherer_->acquire(bucket);
  EXPECT_EQ(gatherer_->most_live(), 3 * kSize);
  for (const size_t bucket : {0, 1, 2}) gatherer_->release(bucket);
  calls_.clear();
  use(3);
  EXPECT_THAT(calls_, ElementsAre("start 3", "finish 3"));
  EXPECT_EQ(gatherer_->most_live(), 3 * kSize) << "two gave their room";
  gatherer_->end_pass();
}

TEST_F(Gatherer, ReuseKeepsWhatIsUsedAgainSoon) {
  const std::vector<size_t> order = {0, 1, 2, 0};
  limit({.reuse = 2 * kSize, .prefetch = 0});
  pass(order);
  EXPECT_THAT(starts(order), ElementsAre(0, 1, 2));
  limit({.reuse = 2 * kSize - 1, .prefetch = 0});
  pass(order);
  EXPECT_THAT(starts(order), ElementsAre(0, 1, 2, 0));
}

TEST_F(Gatherer, UsesAfterEachOtherNeedNoReuse) {
  limit({.reuse = 0, .prefetch = 0});
  const std::vector<size_t> order = {0, 0, 1, 2, 2, 2, 0};
  pass(order);
  EXPECT_THAT(starts(order), ElementsAre(0, 1, 2, 0));
}

TEST_F(Gatherer, ResidentOnesStayUntilTheirPiecesChange) {
  limit({.live = kSize, .reuse = 0});
  EXPECT_THAT(starts({5, 0, 1, 5}), ElementsAre(5, 0, 1));
  EXPECT_THAT(starts({5, 0, 1, 5}), ElementsAre(0, 1));
  calls_.clear();
  gatherer_->pieces_changed(false);
  EXPECT_THAT(calls_, ElementsAre("changed"));
  EXPECT_THAT(starts({5, 0, 1, 5}), ElementsAre(5, 0, 1));
  calls_.clear();
  gatherer_->pieces_changed(true);
  EXPECT_THAT(calls_, ElementsAre("all changed"));
}

TEST_F(Gatherer, APassThatEndsEarlyGivesUpWhatIsUnderWay) {
  limit({});
  pass({0, 1, 2, 3});
  calls_.clear();
  gatherer_->begin_pass();
  use(0);
  gatherer_->drop_pass();
  EXPECT_THAT(calls_, ElementsAre("start 0", "start 1", "start 2", "start 3", "finish 0",
                                  "abandon 1", "abandon 2", "abandon 3"));
  // The order of the pass before is still the known one.
  EXPECT_THAT(starts({0, 1, 2, 3}), ElementsAre(0, 1, 2, 3));
  calls_.clear();
  gatherer_->begin_pass();
  use(0);
  EXPECT_THAT(calls_, ElementsAre("start 0", "start 1", "start 2", "start 3", "finish 0"));
  gatherer_->drop_pass();
}

TEST_F(Gatherer, AFailureEndsTheHold) {
  limit({});
  gatherer_->begin_pass();
  route_->fails = "finish 2";
  EXPECT_THROW(gatherer_->acquire(2), Error);
  route_->fails.clear();
  calls_.clear();
  gatherer_->end_pass();
  EXPECT_THAT(calls_, ElementsAre("abandon 2"));
  EXPECT_THAT(starts({2}), ElementsAre(2));
}

}  // namespace
}  // namespace ds::zero
