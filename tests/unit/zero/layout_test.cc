// The flat space: buckets, pieces, and what each rank owns.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "fresh_seed.h"
#include "zero/flat_layout.h"

namespace ds::zero {
namespace {

nn::ParameterSet random_parameters(std::mt19937_64& random) {
  nn::ParameterSet out;
  const int64_t count = 1 + static_cast<int64_t>(random() % 30);
  for (int64_t i = 0; i < count; ++i) {
    nn::Parameter p;
    p.name = "p" + std::to_string(i);
    p.shape = {static_cast<int64_t>(random() % 300)};
    p.trainable = random() % 4 != 0;
    p.decays = random() % 2 != 0;
    out.add(p);
  }
  return out;
}

TEST(FlatLayout, EveryElementHasOneOwner) {
  const uint64_t seed = ds::fresh_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    const nn::ParameterSet parameters = random_parameters(random);
    const int world = 1 + static_cast<int>(random() % 5);
    Sharing sharing;
    sharing.domains = {{0, world}};
    sharing.bucket_elements = 1 + static_cast<int64_t>(random() % 1000);
    if (random() % 2 != 0) {
      for (nn::ParamId id = 0; id < parameters.size(); ++id) {
        sharing.resident.push_back(random() % 3 == 0);
      }
    }
    const FlatLayout layout(parameters, sharing);
    int64_t end = 0, owned = 0;
    for (const Bucket& bucket : layout.buckets()) {
      EXPECT_EQ(bucket.range.begin, end);
      EXPECT_EQ(bucket.range.elements(), world * bucket.piece);
      EXPECT_EQ(bucket.piece % FlatLayout::kAlign, 0);
      EXPECT_EQ(bucket.owned, owned);
      end = bucket.range.end;
      owned += bucket.piece;
      for (size_t i = bucket.first; i < bucket.last; ++i) {
        const nn::ParamId id = layout.order()[i];
        EXPECT_EQ(parameters[id].trainable, bucket.trainable);
        EXPECT_GE(layout.range(id).begin, bucket.range.begin);
        EXPECT_LE(layout.range(id).end, bucket.range.end);
      }
    }
    EXPECT_EQ(end, layout.elements());
    EXPECT_EQ(owned, layout.owned_elements());
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const OwnedPart part = layout.part(id, rank);
        if (part.count == 0) continue;
        EXPECT_EQ(part.first, next);
        EXPECT_EQ(part.flat, layout.range(id).begin + part.first);
        EXPECT_GE(part.owned, 0);
        EXPECT_LE(part.owned + part.count, layout.owned_elements());
        next += part.count;
      }
      EXPECT_EQ(next, parameters[id].shape.elements());
    }
  }
}

// Buckets of a domain follow each other, each cut among the domain's own ranks; what other ranks
// hold has no place.
TEST(FlatLayout, BucketsAreOfOneDomain) {
  const uint64_t seed = ds::fresh_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    const nn::ParameterSet parameters = random_parameters(random);
    const int domains = 1 + static_cast<int>(random() % 4);
    Sharing sharing;
    sharing.domains.clear();
    for (int i = 0; i < domains; ++i) {
      const int world = 1 + static_cast<int>(random() % 4);
      sharing.domains.push_back({static_cast<int>(random() % static_cast<uint64_t>(world)), world});
    }
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      sharing.domain.push_back(static_cast<int>(random() % static_cast<uint64_t>(domains + 1)) - 1);
    }
    sharing.bucket_elements = 1 + static_cast<int64_t>(random() % 1000);
    const FlatLayout layout(parameters, sharing);
    int64_t end = 0, owned = 0;
    int last = 0;
    bool trainable = true;
    for (const Bucket& bucket : layout.buckets()) {
      EXPECT_EQ(bucket.range.begin, end);
      EXPECT_EQ(bucket.owned, owned);
      EXPECT_EQ(layout.world(bucket), sharing.domains[static_cast<size_t>(bucket.domain)].world);
      EXPECT_EQ(bucket.range.elements(), layout.world(bucket) * bucket.piece);
      end = bucket.range.end;
      owned += bucket.piece;
      if (trainable != bucket.trainable) last = 0;
      trainable = bucket.trainable;
      EXPECT_GE(bucket.domain, last);
      last = bucket.domain;
      for (size_t i = bucket.first; i < bucket.last; ++i) {
        EXPECT_EQ(sharing.domain[static_cast<size_t>(layout.order()[i])], bucket.domain);
      }
    }
    EXPECT_EQ(owned, layout.owned_elements());
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      const int domain = sharing.domain[static_cast<size_t>(id)];
      EXPECT_EQ(layout.holds(id), domain != Sharing::kAbsent);
      if (domain == Sharing::kAbsent) {
        EXPECT_EQ(layout.part(id).count, 0);
        continue;
      }
      int64_t elements = 0;
      for (int rank = 0; rank < layout.world(domain); ++rank) {
        elements += layout.part(id, rank).count;
      }
      EXPECT_EQ(elements, parameters[id].shape.elements());
      EXPECT_EQ(layout.part(id).first, layout.part(id, layout.rank(domain)).first);
    }
  }
}

// So weights that a model held become masters as they lie.
TEST(FlatLayout, OneRankHasTheOrderOfWeightsThatNobodyTrains) {
  const uint64_t seed = ds::fresh_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    const nn::ParameterSet parameters = random_parameters(random);
    Sharing sharing;
    sharing.bucket_elements = 1 + static_cast<int64_t>(random() % 1000);
    for (nn::ParamId id = 0; id < parameters.size(); ++id) {
      sharing.fp32.push_back(random() % 3 == 0);
    }
    const nn::FlatOrder order(parameters);
    for (const FlatLayout& layout : {FlatLayout(parameters), FlatLayout(parameters, sharing)}) {
      EXPECT_EQ(layout.elements(), order.elements());
      EXPECT_TRUE(std::ranges::equal(layout.order(), order.order()));
      for (nn::ParamId id = 0; id < parameters.size(); ++id) {
        EXPECT_EQ(layout.range(id).begin, order.range(id).begin);
        EXPECT_EQ(layout.range(id).end, order.range(id).end);
      }
    }
  }
}

TEST(FlatLayout, OneRankOwnsTheFlatSpace) {
  std::mt19937_64 random(5);
  const nn::ParameterSet parameters = random_parameters(random);
  Sharing sharing;
  sharing.bucket_elements = 100;
  const FlatLayout layout(parameters, sharing), plain(parameters);
  EXPECT_EQ(layout.elements(), plain.elements());
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    EXPECT_EQ(layout.range(id).begin, plain.range(id).begin);
    EXPECT_EQ(layout.part(id).owned, layout.range(id).begin);
    EXPECT_EQ(layout.part(id).count, parameters[id].shape.elements());
  }
}

}  // namespace
}  // namespace ds::zero
