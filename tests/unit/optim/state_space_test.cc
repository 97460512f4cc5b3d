// How a space of states is cut into runs and pieces: which neighbours one update takes together,
// and where it does not.
#include "optim/state_space.h"

#include <gtest/gtest.h>

#include "unit/optim/optim_world.h"

namespace ds::optim {
namespace {

using testing::make_places;

constexpr int64_t kChunk = kernels::kUpdateChunk;

// A tensor of `n` elements at `begin` of the owned space and `flat` of the flat one.
TensorPlace at(int64_t begin, int64_t n, int64_t flat) {
  TensorPlace place{"w" + std::to_string(begin), {n}, begin, begin + n};
  place.flat = flat;
  return place;
}

struct Bounds {
  int64_t begin, end, flat, offset;
  bool operator==(const Bounds&) const = default;
};

void PrintTo(const Bounds& b, std::ostream* out) {
  *out << b.begin << " to " << b.end << ", flat " << b.flat << ", states " << b.offset;
}

std::vector<Bounds> bounds_of(const StateSpace& space) {
  std::vector<Bounds> all;
  for (const StateRun& run : space.runs()) {
    all.push_back({run.begin, run.end, run.flat, run.offset});
  }
  return all;
}

StateSpace space_of(const std::vector<TensorPlace>& places, StateSpace::Options options = {}) {
  options.states = {{"state"}};
  return {options, places, make_cpu_device()};
}

using All = std::vector<Bounds>;

TEST(StateSpace, JoinsNeighboursWithLessThanAnAlignmentBetween) {
  EXPECT_EQ(bounds_of(space_of({at(0, 10, 0), at(41, 9, 41)})), (All{{0, 50, 0, 0}}));
  EXPECT_EQ(bounds_of(space_of({at(0, 10, 0), at(42, 8, 42)})),
            (All{{0, 10, 0, 0}, {42, 50, 42, 256}}));
  // The order of places does not matter.
  EXPECT_EQ(bounds_of(space_of({at(42, 8, 42), at(0, 10, 0)})),
            (All{{0, 10, 0, 0}, {42, 50, 42, 256}}));
}

TEST(StateSpace, JoinsWhatLiesAlikeInBothSpacesAlone) {
  EXPECT_EQ(bounds_of(space_of({at(0, 32, 100), at(32, 32, 132), at(64, 32, 164)})),
            (All{{0, 96, 100, 0}}));
  EXPECT_EQ(bounds_of(space_of({at(0, 32, 100), at(32, 32, 164), at(64, 32, 196)})),
            (All{{0, 32, 100, 0}, {32, 96, 164, 256}}));
  EXPECT_EQ(bounds_of(space_of({at(64, 300, 0), at(364, 20, 300)})), (All{{64, 384, 0, 0}}));
}

TEST(StateSpace, GivesEveryTensorARunWhereThatIsAsked) {
  StateSpace::Options options;
  options.run_per_tensor = true;
  options.most_elements = 1;  // matrices stay whole
  EXPECT_EQ(
      bounds_of(space_of({at(0, 32, 0), at(32, kChunk + 5, 32), at(kChunk + 64, 3, 99)}, options)),
      (All{{0, 32, 0, 0},
           {32, kChunk + 37, 32, 256},
           {kChunk + 64, kChunk + 67, 99, kChunk + 512}}));
}

TEST(StateSpace, LeavesOutTensorsThatAreNotOwnedOrNoMembers) {
  StateSpace::Options options;
  options.member = [](const TensorPlace& place) { return place.name != "w32"; };
  const StateSpace space =
      space_of({at(0, 32, 0), at(32, 32, 32), at(64, 0, 64), at(64, 32, 64)}, options);
  EXPECT_EQ(bounds_of(space), (All{{0, 32, 0, 0}, {64, 96, 64, 256}}));
  EXPECT_EQ(space.runs()[1].tensors, (std::vector<size_t>{3})) << "w64 has nothing to update";
  const StateSpace between = space_of({at(0, 32, 0), at(32, 0, 32), at(32, 32, 32)});
  EXPECT_EQ(between.runs()[0].tensors, (std::vector<size_t>{0, 2}));
  EXPECT_TRUE(space.includes(0));
  EXPECT_FALSE(space.includes(1));
  EXPECT_TRUE(space.includes(2));
  EXPECT_TRUE(bounds_of(space_of({at(5, 0, 5)})).empty());
  EXPECT_TRUE(bounds_of(space_of({})).empty());
}

// Cuts are at chunks, counted from the run's beginning, and states lie without a gap.
TEST(StateSpace, CutsRunsAtChunks) {
  const std::vector<TensorPlace> places = {at(32, 3 * kChunk, 64),
                                           at(3 * kChunk + 32, 7, 3 * kChunk + 64)};
  for (const int64_t most : {int64_t{1}, kChunk, 2 * kChunk - 1}) {
    StateSpace::Options options;
    options.most_elements = most;
    All expected;
    for (int64_t i = 0; i < 3; ++i) {
      expected.push_back({32 + i * kChunk, 32 + (i + 1) * kChunk, 64 + i * kChunk, i * kChunk});
    }
    expected.push_back({3 * kChunk + 32, 3 * kChunk + 39, 3 * kChunk + 64, 3 * kChunk});
    EXPECT_EQ(bounds_of(space_of(places, options)), expected) << most;
  }
  StateSpace::Options options;
  options.most_elements = 2 * kChunk;
  EXPECT_EQ(bounds_of(space_of(places, options)),
            (All{{32, 2 * kChunk + 32, 64, 0},
                 {2 * kChunk + 32, 3 * kChunk + 39, 2 * kChunk + 64, 2 * kChunk}}));
}

// Every owned element lies in one piece of its own chunk, of its own tensor, or of its key.
TEST(StateSpace, CoversEveryElementByOnePiece) {
  const std::vector<TensorPlace> places =
      make_places({{17}, {33000}, {5}, {70, 31}, {1}, {2 * kChunk}, {64}, {300, 101}}, 2);
  for (const bool keyed : {false, true}) {
    for (const int64_t most : {int64_t{0}, kChunk}) {
      StateSpace::Options options;
      options.most_elements = most;
      if (keyed) {
        options.key = [&](size_t i) { return int64_t{10} + places[i].group; };
      }
      const StateSpace space = space_of(places, options);
      std::vector<int64_t> hyper(static_cast<size_t>(testing::span_of(places)), -1);
      size_t pieces = 0;
      for (const StateRun& run : space.runs()) {
        ASSERT_EQ(std::ssize(run.first), (run.end - run.begin + kChunk - 1) / kChunk + 1);
        EXPECT_EQ(run.first.front(), 0);
        EXPECT_EQ(run.first.back(), std::ssize(run.pieces));
        pieces += run.pieces.size();
        for (size_t chunk = 0; chunk + 1 < run.first.size(); ++chunk) {
          for (int64_t p = run.first[chunk]; p < run.first[chunk + 1]; ++p) {
            const kernels::UpdatePiece& piece = run.pieces[static_cast<size_t>(p)];
            EXPECT_LT(piece.begin, piece.end);
            EXPECT_EQ(piece.begin / kChunk, static_cast<int64_t>(chunk));
            EXPECT_EQ((piece.end - 1) / kChunk, static_cast<int64_t>(chunk));
            const auto tensor =
                keyed ? piece.hyper
                      : static_cast<int64_t>(run.tensors.at(static_cast<size_t>(piece.hyper)));
            for (int64_t i = run.begin + piece.begin; i < run.begin + piece.end; ++i) {
              EXPECT_EQ(hyper.at(static_cast<size_t>(i)), -1) << i;
              hyper[static_cast<size_t>(i)] = tensor;
            }
          }
        }
      }
      for (size_t k = 0; k < places.size(); ++k) {
        const int64_t expected = keyed ? 10 + places[k].group : static_cast<int64_t>(k);
        for (int64_t i = places[k].begin; i < places[k].end; ++i) {
          ASSERT_EQ(hyper[static_cast<size_t>(i)], expected) << k << " " << i;
        }
      }
      EXPECT_GE(pieces, places.size());
    }
  }
}

// Neighbours with one key are one piece, with the padding between them.
TEST(StateSpace, JoinsPiecesOfOneKey) {
  StateSpace::Options options;
  options.key = [](size_t i) { return int64_t{i == 2 ? 8 : 7}; };
  const StateSpace space =
      space_of({at(0, 10, 0), at(32, 20, 32), at(64, 5, 64), at(96, 5, 96)}, options);
  ASSERT_EQ(space.runs().size(), 1u);
  const std::vector<kernels::UpdatePiece>& pieces = space.runs()[0].pieces;
  ASSERT_EQ(pieces.size(), 3u);
  const int64_t expected[][3] = {{0, 52, 7}, {64, 69, 8}, {96, 101, 7}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(pieces[i].begin, expected[i][0]);
    EXPECT_EQ(pieces[i].end, expected[i][1]);
    EXPECT_EQ(pieces[i].hyper, expected[i][2]);
  }
  EXPECT_EQ(space.runs()[0].tensors, (std::vector<size_t>{0, 1, 2, 3}));
}

// All elements begin alike, also those of the last block and beyond what is written at once.
TEST(StateSpace, BeginsEveryElementWithTheStatesInitialValue) {
  for (const OptimizerStateType type :
       {OptimizerStateType::kFp32, OptimizerStateType::kBf16, OptimizerStateType::kInt8}) {
    StateSpace::Options options;
    options.states = {{"zero", true}, {"quarter", false, 0.25}};
    options.type = type;
    constexpr int64_t kElements = 256 * kernels::kStateBlock + 777;
    const std::vector<TensorPlace> places = {at(0, kElements, 0)};
    const StateSpace space(options, places, make_cpu_device());
    std::vector<float> values(kElements);
    for (size_t state = 0; state < 2; ++state) {
      space.read(0, state, 0, kElements, values.data());
      const float expected = state == 0 ? 0 : 0.25f;
      for (const float value : values) ASSERT_EQ(value, expected) << static_cast<int>(type);
    }
  }
}

// A part of a block of 8 bits waits until all of the state is written: whole blocks that come after
// it take its place where they lie, and nowhere else.
TEST(StateSpace, PartsOfBlocksWaitUntilTheirBlockIsWritten) {
  constexpr int64_t kBlock = kernels::kStateBlock;
  StateSpace::Options options;
  options.states = {{"state", true}};
  options.type = OptimizerStateType::kInt8;
  const std::vector<TensorPlace> places = {at(0, 8 * kBlock, 0)};
  StateSpace space(options, places, make_cpu_device());
  const auto fill = [&](int64_t begin, int64_t end, float value) {
    const std::vector<float> values(static_cast<size_t>(end - begin), value);
    space.write(0, 0, begin, end, values.data());
  };
  fill(kBlock + 3, kBlock + 9, -1);
  fill(5 * kBlock + 10, 5 * kBlock + 20, 1);
  fill(0, 3 * kBlock, 0.5F);
  const auto check = [&](const char* when) {
    std::vector<float> values(static_cast<size_t>(8 * kBlock));
    space.read(0, 0, 0, 8 * kBlock, values.data());
    for (int64_t i = 0; i < 8 * kBlock; ++i) {
      const bool late = i >= 5 * kBlock + 10 && i < 5 * kBlock + 20;
      const float expected = i < 3 * kBlock ? 0.5F : late ? 1 : 0;
      ASSERT_NEAR(values[static_cast<size_t>(i)], expected, 0.01) << when << ": element " << i;
    }
  };
  check("some wait");
  space.encode_writes();
  check("all is written");
}

}  // namespace
}  // namespace ds::optim
