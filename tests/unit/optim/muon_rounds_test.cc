// Which matrices Muon brings together at a time, who orthogonalises which, and how much travels: by
// hand for a few, and for random ones by what has to hold.
#include "optim/muon_rounds.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "fresh_seed.h"
#include "unit/optim/optim_world.h"

namespace ds::optim {
namespace {

using testing::make_places;

// Of each tensor the ranks own what lies between the cuts that are given for it.
class CutPeers : public ShardGroup {
 public:
  CutPeers(int rank, int size, std::vector<std::vector<int64_t>> cuts)
      : rank_(rank), size_(size), cuts_(std::move(cuts)), tensors_(cuts_.size()) {
    std::iota(tensors_.begin(), tensors_.end(), size_t{0});
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::span<const size_t> tensors() const override { return tensors_; }
  OwnedRange part(size_t tensor, int rank) const override {
    const auto i = static_cast<size_t>(rank);
    return {cuts_[tensor][i], cuts_[tensor][i + 1]};
  }
  void sum(std::span<int64_t>) override { FAIL() << "rounds are planned without a word"; }
  void exchange(const Tensor&, std::span<const int64_t>, const Tensor&,
                std::span<const int64_t>) override {
    FAIL() << "rounds are planned without a word";
  }

 private:
  const int rank_, size_;
  const std::vector<std::vector<int64_t>> cuts_;
  std::vector<size_t> tensors_;
};

// Everything on rank 0.
CutPeers on_first_rank(const std::vector<TensorPlace>& places, int size) {
  std::vector<std::vector<int64_t>> cuts;
  for (const TensorPlace& place : places) {
    cuts.emplace_back(static_cast<size_t>(size) + 1, place.shape.elements()).front() = 0;
  }
  return {0, size, std::move(cuts)};
}

using Tensors = std::vector<size_t>;
using Owners = std::vector<int>;
using Counts = std::vector<int64_t>;

TEST(MuonStack, SeesThreeDimensionsAsMatricesAndOthersAsOne) {
  EXPECT_EQ(muon_stack({3, 4, 5}), (Shape{3, 4, 5}));
  EXPECT_EQ(muon_stack({4, 5}), (Shape{1, 4, 5}));
  EXPECT_EQ(muon_stack({1, 5}), (Shape{1, 1, 5}));
  EXPECT_EQ(muon_stack({4, 3, 2, 2}), (Shape{1, 4, 12}));
  EXPECT_EQ(muon_stack({4, 0}), (Shape{1, 4, 0}));
  EXPECT_EQ(muon_stack({0, 5}), (Shape{1, 0, 0}));
}

TEST(MuonMatrix, TakesTwoDimensionsOrMoreButNoEmbeddings) {
  const auto is_matrix = [](const std::string& name, const Shape& shape) {
    return is_muon_matrix({name, shape});
  };
  EXPECT_TRUE(is_matrix("h.0.attn.weight", {4, 4}));
  EXPECT_TRUE(is_matrix("conv", {4, 3, 2, 2}));
  EXPECT_FALSE(is_matrix("h.0.attn.bias", {4}));
  EXPECT_FALSE(is_matrix("model.Embed_tokens.weight", {4, 4}));
  EXPECT_FALSE(is_matrix("LM_HEAD.weight", {4, 4}));
}

// Work is elements times the shorter side: 64 of the first and 32 of each of the others, which go
// in their order, each to the rank that has the least so far.
TEST(MuonRounds, GiveTheMostWorkFirstAndEqualOnesInTheirOrder) {
  std::vector<TensorPlace> places =
      make_places({{10}, {2, 8}, {4, 4}, {8, 2}, {2, 8}, {100, 100}, {0, 7}});
  places[5].name = "embed.weight";
  const std::vector<std::vector<int64_t>> cuts = {
      {0, 10, 10}, {0, 5, 16}, {0, 3, 16}, {0, 16, 16}, {0, 0, 16}, {0, 7, 10000}, {0, 0, 0}};
  const std::vector<MuonRound> first = muon_rounds(places, CutPeers(0, 2, cuts));
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].tensors, (Tensors{2, 4, 1, 3}));
  EXPECT_EQ(first[0].owners, (Owners{0, 0, 1, 1}));
  EXPECT_EQ(first[0].sent, (Counts{3 + 0, 5 + 16}));
  EXPECT_EQ(first[0].received, (Counts{3 + 0, 13 + 16}));
  const std::vector<MuonRound> second = muon_rounds(places, CutPeers(1, 2, cuts));
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].tensors, first[0].tensors);
  EXPECT_EQ(second[0].owners, first[0].owners);
  EXPECT_EQ(second[0].sent, (Counts{13 + 16, 11 + 0}));
  EXPECT_EQ(second[0].received, (Counts{5 + 16, 11 + 0}));
}

// A round holds 2^24 elements for each rank, and a matrix beyond that makes one alone.
TEST(MuonRounds, EndBeforeTheyExceedTheirSize) {
  const int64_t side = 4096;
  const std::vector<TensorPlace> places = make_places(
      {{2 * side, 2 * side}, {side, side}, {side, side}, {side, side}, {1, 1}, {2 * side, side}});
  const auto tensors_of = [&](int size) {
    std::vector<Tensors> all;
    for (const MuonRound& round : muon_rounds(places, on_first_rank(places, size))) {
      all.push_back(round.tensors);
      std::sort(all.back().begin(), all.back().end());
    }
    return all;
  };
  EXPECT_EQ(tensors_of(1), (std::vector<Tensors>{{0}, {1}, {2}, {3}, {4}, {5}}));
  EXPECT_EQ(tensors_of(2), (std::vector<Tensors>{{0}, {1, 2}, {3, 4}, {5}}));
  EXPECT_EQ(tensors_of(4), (std::vector<Tensors>{{0}, {1, 2, 3, 4}, {5}}));
}

TEST(MuonRounds, AreNoneWithoutMatrices) {
  const std::vector<TensorPlace> places = make_places({{10}, {0, 3}});
  EXPECT_TRUE(muon_rounds(places, on_first_rank(places, 3)).empty());
}

// Every matrix is in one round, all ranks agree on the owners, and what one rank sends to another
// is what that one expects from it.
TEST(MuonRounds, AgreeOnEveryRank) {
  SCOPED_TRACE(str_cat("DS_TEST_SEED=", ds::run_seed()));
  std::mt19937_64 random(ds::run_seed());
  constexpr int kRanks = 3;
  std::vector<Shape> shapes;
  std::vector<std::vector<int64_t>> cuts;
  for (int i = 0; i < 60; ++i) {
    const auto rows = static_cast<int64_t>(random() % 3000),
               columns = static_cast<int64_t>(random() % 3000);
    shapes.push_back({rows, columns});
    const auto n = static_cast<uint64_t>(shapes.back().elements());
    auto a = static_cast<int64_t>(random() % (n + 1)), b = static_cast<int64_t>(random() % (n + 1));
    cuts.push_back({0, std::min(a, b), std::max(a, b), static_cast<int64_t>(n)});
  }
  const std::vector<TensorPlace> places = make_places(shapes);
  std::vector<std::vector<MuonRound>> by_rank;
  for (int rank = 0; rank < kRanks; ++rank) {
    by_rank.push_back(muon_rounds(places, CutPeers(rank, kRanks, cuts)));
  }
  std::vector<int> met(places.size());
  EXPECT_GT(by_rank[0].size(), 1u);
  for (size_t k = 0; k < by_rank[0].size(); ++k) {
    int64_t elements = 0;
    for (const size_t tensor : by_rank[0][k].tensors) {
      ++met[tensor];
      elements += shapes[tensor].elements();
    }
    EXPECT_LE(elements, kRanks << 24);
    for (size_t i = 0; i < kRanks; ++i) {
      const MuonRound& round = by_rank[i].at(k);
      EXPECT_EQ(round.tensors, by_rank[0][k].tensors);
      EXPECT_EQ(round.owners, by_rank[0][k].owners);
      EXPECT_TRUE(std::is_sorted(round.owners.begin(), round.owners.end()));
      for (size_t j = 0; j < kRanks; ++j) EXPECT_EQ(round.sent[j], by_rank[j].at(k).received[i]);
    }
  }
  for (size_t i = 0; i < met.size(); ++i) EXPECT_EQ(met[i], shapes[i].elements() == 0 ? 0 : 1);
}

}  // namespace
}  // namespace ds::optim
