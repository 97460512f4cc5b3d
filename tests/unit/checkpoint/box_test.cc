// Boxes against element-by-element references.
#include "tensor/box.h"

#include <algorithm>
#include <numeric>

#include "fresh_seed.h"
#include "full_run.h"
#include "unit/checkpoint/support.h"

namespace ds::test {
namespace {

using Sizes = std::vector<int64_t>;

Sizes random_shape(std::mt19937_64* rng, int max_rank = 4) {
  Sizes shape((*rng)() % static_cast<uint64_t>(max_rank + 1));
  for (int64_t& s : shape) s = static_cast<int64_t>(1 + (*rng)() % 5);
  return shape;
}

// Flat indices of a box's elements in the order they are packed.
Sizes flat_indices(const Sizes& shape, const Box& box) {
  Sizes out;
  const int64_t n = box.elements();
  for (int64_t i = 0; i < n; ++i) {
    int64_t rest = i, flat = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      flat += (box.offset[d] + rest % box.extent[d]) * stride;
      rest /= box.extent[d];
      stride *= shape[d];
    }
    out.push_back(flat);
  }
  return out;
}

Box random_box(std::mt19937_64* rng, const Sizes& shape) {
  Box box;
  for (const int64_t s : shape) {
    const auto begin = static_cast<int64_t>((*rng)() % static_cast<uint64_t>(s));
    box.offset.push_back(begin);
    box.extent.push_back(1 + static_cast<int64_t>((*rng)() % static_cast<uint64_t>(s - begin)));
  }
  return box;
}

TEST(Box, RangesBecomeBoxesInMemoryOrder) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  for (int round = 0; round < 500; ++round) {
    const Sizes shape = random_shape(&rng);
    const int64_t total =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
    auto begin = static_cast<int64_t>(rng() % static_cast<uint64_t>(total + 1));
    auto end = static_cast<int64_t>(rng() % static_cast<uint64_t>(total + 1));
    if (begin > end) std::swap(begin, end);
    Sizes got;
    const auto boxes = boxes_of_range(shape, begin, end);
    EXPECT_LE(boxes.size(), std::max<size_t>(1, 2 * shape.size() - (shape.empty() ? 0 : 1)));
    for (const Box& box : boxes) {
      check_box(box, shape, Code::kInternal, "box");
      const Sizes part = flat_indices(shape, box);
      got.insert(got.end(), part.begin(), part.end());
    }
    Sizes expected(static_cast<size_t>(end - begin));
    std::iota(expected.begin(), expected.end(), begin);
    ASSERT_EQ(got, expected) << full_box(shape).text() << " " << begin << ":" << end;
  }
}

TEST(Box, RangesOutsideTheTensorAreRefused) {
  EXPECT_THROW(boxes_of_range(Sizes{2, 3}, 0, 7), Error);
  EXPECT_THROW(boxes_of_range(Sizes{2, 3}, -1, 2), Error);
  EXPECT_THROW(boxes_of_range(Sizes{2, 3}, 4, 2), Error);
  EXPECT_TRUE(boxes_of_range(Sizes{0, 3}, 0, 0).empty());
}

TEST(Box, RunsCarryExactlyTheCommonPart) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  for (int round = 0; round < 500; ++round) {
    const Sizes shape = random_shape(&rng);
    const Box source = random_box(&rng, shape), target = random_box(&rng, shape);
    const Sizes from = flat_indices(shape, source), to = flat_indices(shape, target);
    Sizes result(to.size(), -1);
    const auto part = intersect(source, target);
    if (part) {
      int64_t last = -1;
      for_each_run(source, target, *part, [&](int64_t s, int64_t t, int64_t n) {
        EXPECT_GT(s, last);
        last = s + n - 1;
        for (int64_t i = 0; i < n; ++i) {
          result[static_cast<size_t>(t + i)] = from[static_cast<size_t>(s + i)];
        }
      });
    }
    for (size_t i = 0; i < to.size(); ++i) {
      const bool common = std::find(from.begin(), from.end(), to[i]) != from.end();
      ASSERT_EQ(result[i], common ? to[i] : -1);
    }
  }
}

TEST(Box, TilingAcceptsRandomCutsAndFindsHolesAndOverlaps) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  for (int round = 0; round < 300; ++round) {
    Sizes shape = random_shape(&rng, 3);
    // Cut a random box of the list in two, several times.
    std::vector<Box> boxes = {full_box(shape)};
    for (int cut = 0; cut < 8 && !shape.empty(); ++cut) {
      const size_t i = rng() % boxes.size(), d = rng() % shape.size();
      if (boxes[i].extent[d] < 2) continue;
      Box upper = boxes[i];
      const auto at = static_cast<int64_t>(1 + rng() % static_cast<uint64_t>(upper.extent[d] - 1));
      upper.offset[d] += at;
      upper.extent[d] -= at;
      boxes[i].extent[d] = at;
      boxes.push_back(upper);
    }
    std::shuffle(boxes.begin(), boxes.end(), rng);
    check_tiling(shape, boxes, Code::kCorrupt, "t");

    std::vector<Box> hole = boxes;
    hole.erase(hole.begin() + static_cast<int64_t>(rng() % hole.size()));
    EXPECT_NE(
        error_of([&] { check_tiling(shape, hole, Code::kCorrupt, "t"); }).message().find("missing"),
        std::string::npos);
    std::vector<Box> overlap = boxes;
    overlap.push_back(random_box(&rng, shape));
    EXPECT_NE(error_of([&] { check_tiling(shape, overlap, Code::kCorrupt, "t"); })
                  .message()
                  .find("overlap"),
              std::string::npos);
  }
}

// As many slices as a manifest may have, of which every one has thousands of neighbours: a
// comparison of pairs would outlast the test's time-out.
TEST(Box, TilingOfManyCellsTakesTimeInProportion) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  for (const Sizes& shape : {Sizes(8, 4), Sizes{256, 256}, Sizes{65536}, Sizes{1, 64, 1, 1024}}) {
    std::vector<Box> cells;
    for (int64_t i = 0; i < 65536; ++i) {
      Box cell = full_box(shape);
      int64_t rest = i;
      for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) {
        cell.offset[d] = rest % shape[d];
        cell.extent[d] = 1;
      }
      cells.push_back(cell);
    }
    std::shuffle(cells.begin(), cells.end(), rng);
    check_tiling(shape, cells, Code::kCorrupt, "t");
    const auto message = [&] {
      return error_of([&] { check_tiling(shape, cells, Code::kCorrupt, "t"); }).message();
    };
    const Box last = cells.back();
    cells.back() = cells.front();  // one twice, one not at all
    EXPECT_NE(message().find("overlap"), std::string::npos) << message();
    cells.pop_back();
    EXPECT_NE(message().find("missing"), std::string::npos) << message();
    cells.push_back(last);
    cells.push_back(last);
    EXPECT_NE(message().find("overlap"), std::string::npos) << message();
    if (ds::testing::kSanitized) break;  // a shape takes half a minute there
  }
}

TEST(Box, TilingOfManyRandomCuts) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  for (int round = 0; round < 5; ++round) {
    const Sizes shape = {61, 47, 13};
    std::vector<Box> boxes = {full_box(shape)};
    while (boxes.size() < 3000) {
      const size_t i = rng() % boxes.size(), d = rng() % shape.size();
      if (boxes[i].extent[d] < 2) continue;
      Box upper = boxes[i];
      const auto at = static_cast<int64_t>(1 + rng() % static_cast<uint64_t>(upper.extent[d] - 1));
      upper.offset[d] += at;
      upper.extent[d] -= at;
      boxes[i].extent[d] = at;
      boxes.push_back(upper);
    }
    std::shuffle(boxes.begin(), boxes.end(), rng);
    check_tiling(shape, boxes, Code::kCorrupt, "t");
    // Moved by one along a dimension: as many elements, some twice.
    for (Box& box : boxes) {
      if (box.offset[1] + box.extent[1] == shape[1]) continue;
      ++box.offset[1];
      break;
    }
    EXPECT_NE(error_of([&] { check_tiling(shape, boxes, Code::kCorrupt, "t"); })
                  .message()
                  .find("overlap"),
              std::string::npos);
  }
}

// What lies together in both boxes is one run, so that few copies do it.
TEST(Box, RunsAreAsLongAsTheyCanBe) {
  using Runs = std::vector<std::array<int64_t, 3>>;
  const auto runs = [](const Box& source, const Box& target, const Box& part) {
    Runs out;
    for_each_run(source, target, part, [&](int64_t s, int64_t t, int64_t n) {
      out.push_back({s, t, n});
    });
    return out;
  };
  const Box whole{{0, 0, 0}, {3, 4, 5}}, rows{{1, 0, 0}, {2, 4, 5}}, columns{{0, 1, 0}, {3, 2, 5}},
      ends{{0, 0, 3}, {1, 2, 2}};
  EXPECT_EQ(runs(whole, whole, whole), (Runs{{0, 0, 60}}));
  EXPECT_EQ(runs(whole, rows, rows), (Runs{{20, 0, 40}}));
  EXPECT_EQ(runs(rows, whole, rows), (Runs{{0, 20, 40}}));
  EXPECT_EQ(runs(whole, columns, columns), (Runs{{5, 0, 10}, {25, 10, 10}, {45, 20, 10}}));
  EXPECT_EQ(runs(whole, ends, ends), (Runs{{3, 0, 2}, {8, 2, 2}}));
}

TEST(Box, SizesThatOverflowAreRefused) {
  const int64_t big = int64_t{1} << 62;
  EXPECT_THROW(checked_elements(Sizes{big, 4}, 1, Code::kCorrupt, "t"), Error);
  EXPECT_THROW(checked_elements(Sizes{big}, 4, Code::kCorrupt, "t"), Error);
  EXPECT_THROW(checked_elements(Sizes{0, big, 4}, 1, Code::kCorrupt, "t"), Error);
  EXPECT_THROW(checked_elements(Sizes{2, -1}, 1, Code::kCorrupt, "t"), Error);
  EXPECT_THROW(checked_elements(Sizes(9, 1), 1, Code::kCorrupt, "t"), Error);
  EXPECT_EQ(checked_elements(Sizes{0, big}, 1, Code::kCorrupt, "t"), 0);
  const Box far{{INT64_MAX, 0}, {INT64_MAX, 1}};
  EXPECT_THROW(check_box(far, Sizes{4, 4}, Code::kCorrupt, "t"), Error);
}

}  // namespace
}  // namespace ds::test
