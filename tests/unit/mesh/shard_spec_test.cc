// What ranks hold of parameters: every element as often as promised, and where a rule says.
#include "mesh/shard_spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "fresh_seed.h"
#include "nn/parameter.h"
#include "thread_mesh.h"

namespace ds {
namespace {

using mesh_test::error_of;

using Section = SplitRule::Section;

// Calls body(flat index in a tensor of `sizes`) for every element of a box.
void for_each_element(std::span<const int64_t> sizes, const std::vector<int64_t>& offset,
                      const std::vector<int64_t>& extent,
                      const std::function<void(int64_t)>& body) {
  std::vector<int64_t> at(sizes.size(), 0);
  int64_t count = 1;
  for (const int64_t n : extent) count *= n;
  for (int64_t i = 0; i < count; ++i) {
    int64_t flat = 0, rest = i;
    for (size_t d = sizes.size(); d-- > 0;) {
      at[d] = offset[d] + rest % extent[d];
      rest /= extent[d];
    }
    for (size_t d = 0; d < sizes.size(); ++d) {
      ASSERT_LT(at[d], sizes[d]);
      flat = flat * sizes[d] + at[d];
    }
    body(flat);
  }
}

struct Made {
  MeshShape mesh;
  ShardRequest request;
  std::vector<int> copies;  // of each of the rows or columns that are cut
};

// A rule that fits the mesh, of a parameter of a few hundred elements.
Made random_case(std::mt19937_64& random) {
  const auto one_to = [&](int most) {
    return 1 + static_cast<int>(random() % static_cast<uint64_t>(most));
  };
  const MeshSizes sizes{one_to(3), one_to(2), one_to(4), one_to(3), one_to(2)};
  const int stage = sizes.context * sizes.tensor * sizes.expert * sizes.expert_tensor;
  Made made{MeshShape(stage * sizes.pipeline * one_to(2), sizes), {}, {}};
  SplitRule rule;
  const bool experts = random() % 2 == 0;
  const int ranks = experts ? sizes.expert_tensor : sizes.tensor;
  rule.kind = static_cast<SplitRule::Kind>(random() % 4);
  const bool one_expert = experts && random() % 2 == 0;
  const bool may_repeat = rule.kind == SplitRule::Kind::kRows && (!experts || one_expert);
  int64_t cut = one_to(7);
  if (rule.kind == SplitRule::Kind::kVocabulary) {
    rule.multiple = one_to(3);
  } else if (rule.kind != SplitRule::Kind::kWhole) {
    cut = 0;
    for (int i = one_to(3); i > 0; --i) {
      SplitRule::Section section{int64_t{ranks} * (one_to(3) - 1), one_to(3)};
      int copies = 1;
      if (may_repeat && random() % 2 == 0) {
        section.repeats = true;
        // Fewer heads than ranks, in a number that divides these.
        const int heads = one_to(ranks);
        if (ranks % heads == 0) section.units = heads;
        copies = section.units > 0 ? std::max(1, ranks / static_cast<int>(section.units)) : 1;
      }
      rule.sections.push_back(section);
      const int64_t size = section.units * section.unit_size;
      cut += size;
      made.copies.insert(made.copies.end(), static_cast<size_t>(size), copies);
    }
    if (random() % 3 == 0) {
      rule.sections.clear();
      made.copies.clear();
      cut = int64_t{ranks} * one_to(4);
    }
  }
  std::vector<int64_t> shape;
  if (experts) {
    rule.experts = int64_t{sizes.expert} * one_to(2);
    if (one_expert) {
      made.request.expert = static_cast<int64_t>(random() % static_cast<uint64_t>(rule.experts));
    } else {
      shape.push_back(rule.experts);
    }
  }
  if (rule.kind == SplitRule::Kind::kColumns) shape.push_back(one_to(5));
  shape.push_back(cut);
  if (random() % 2 == 0) shape.push_back(one_to(4));
  made.request.name = "p";
  made.request.shape = Shape(shape);
  made.request.rule = rule;
  switch (random() % 3) {
    case 0:
      made.request.stages = {one_to(sizes.pipeline) - 1};
      break;
    case 1:
      made.request.stages = {0};
      if (sizes.pipeline > 1) made.request.stages.push_back(sizes.pipeline - 1);
      break;
    default:
      break;
  }
  return made;
}

TEST(ShardSpec, RanksCoverEveryElementAsOftenAsItSays) {
  const uint64_t seed = ds::fresh_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    const auto [mesh, request, copies] = random_case(random);
    const auto elements = static_cast<size_t>(request.shape.elements());
    std::vector<int> held(elements, 0), primary(elements, 0);
    int64_t replicas = 0;
    for (int rank = 0; rank < mesh.world(); ++rank) {
      const ShardSpec spec = make_shard_spec(request, mesh, rank);
      replicas = spec.replicas;
      EXPECT_EQ(spec.global, request.shape);
      std::vector<int> local(static_cast<size_t>(spec.local.elements()), 0);
      for (const ShardBox& box : spec.boxes) {
        check_box(box.global, request.shape.sizes(), Code::kInternal, "box");
        for_each_element(request.shape.sizes(), box.global.offset, box.global.extent,
                         [&](int64_t i) {
                           ++held[static_cast<size_t>(i)];
                           primary[static_cast<size_t>(i)] += spec.counts(box) ? 1 : 0;
                         });
        for_each_element(spec.local.sizes(), box.local_offset, box.global.extent,
                         [&](int64_t i) { ++local[static_cast<size_t>(i)]; });
      }
      const auto most = local.empty() ? 0 : *std::ranges::max_element(local);
      EXPECT_LE(most, 1) << "boxes overlap in the local tensor";
      if (request.rule.kind != SplitRule::Kind::kVocabulary && spec.held()) {
        EXPECT_EQ(std::ranges::count(local, 0), 0) << "only vocabularies are padded";
      }
    }
    const int64_t row = copies.empty() ? 1 : request.shape.elements() / std::ssize(copies);
    for (size_t i = 0; i < elements; ++i) {
      // Where there are copies, rows are cut.
      const bool rows = request.rule.kind == SplitRule::Kind::kRows && !copies.empty();
      const int of_row = rows ? copies[i / static_cast<size_t>(row)] : 1;
      ASSERT_EQ(held[i], replicas * of_row) << i;
    }
    EXPECT_EQ(std::ranges::count(primary, 1), std::ssize(primary));
  }
}

// The ranks of the group that reduces a gradient hold the same boxes, and so do no others of the
// stage but those that have a copy for each tensor rank.
TEST(ShardSpec, RanksThatReduceAGradientHoldTheSame) {
  const uint64_t seed = ds::fresh_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    const auto [mesh, request, copies] = random_case(random);
    for (int rank = 0; rank < mesh.world(); ++rank) {
      const ShardSpec own = make_shard_spec(request, mesh, rank);
      EXPECT_EQ(own.gradient,
                request.rule.experts > 0 ? MeshGroup::kExpertData : MeshGroup::kDataContext);
      for (const int other : mesh.members(own.gradient, rank)) {
        const ShardSpec theirs = make_shard_spec(request, mesh, other);
        EXPECT_EQ(theirs.local, own.local);
        ASSERT_EQ(theirs.boxes.size(), own.boxes.size());
        for (size_t i = 0; i < own.boxes.size(); ++i) {
          EXPECT_EQ(theirs.boxes[i].global, own.boxes[i].global);
        }
      }
    }
  }
}

std::vector<int64_t> rows_of(const ShardSpec& spec) {
  std::vector<int64_t> rows;
  for (const ShardBox& box : spec.boxes) {
    for (int64_t i = 0; i < box.global.extent[0]; ++i) rows.push_back(box.global.offset[0] + i);
  }
  return rows;
}

TEST(ShardSpec, SectionsAreDealtOneByOne) {
  const MeshShape mesh(2, {.tensor = 2});
  // Four query heads, two keys and two values of two channels each, one after another.
  const ShardRequest qkv{"qkv", {16, 3}, SplitRule::head_rows({{4, 2}, {2, 2}, {2, 2}}), -1, {}};
  EXPECT_EQ(rows_of(make_shard_spec(qkv, mesh, 0)),
            (std::vector<int64_t>{0, 1, 2, 3, 8, 9, 12, 13}));
  EXPECT_EQ(rows_of(make_shard_spec(qkv, mesh, 1)),
            (std::vector<int64_t>{4, 5, 6, 7, 10, 11, 14, 15}));
  EXPECT_EQ(make_shard_spec(qkv, mesh, 1).local, (Shape{8, 3}));
  // Each group of queries beside its key and value.
  const ShardRequest grouped{"qkv", {16, 3}, SplitRule::head_rows({{2, 8}}), -1, {}};
  EXPECT_EQ(rows_of(make_shard_spec(grouped, mesh, 1)),
            (std::vector<int64_t>{8, 9, 10, 11, 12, 13, 14, 15}));
}

// Eight heads of queries and two of keys and values on four ranks: two ranks share a key.
TEST(ShardSpec, RanksHoldTheSameHeadWhereThereAreFewer) {
  const MeshShape mesh(4, {.tensor = 4});
  const SplitRule rule = SplitRule::head_rows({{8, 1}, {2, 3, true}});
  const ShardRequest qk{"qk", {14, 2}, rule, -1, {}};
  EXPECT_EQ(rows_of(make_shard_spec(qk, mesh, 1)), (std::vector<int64_t>{2, 3, 8, 9, 10}));
  EXPECT_EQ(rows_of(make_shard_spec(qk, mesh, 2)), (std::vector<int64_t>{4, 5, 11, 12, 13}));
  for (int rank = 0; rank < 4; ++rank) {
    const ShardSpec spec = make_shard_spec(qk, mesh, rank);
    ASSERT_EQ(spec.boxes.size(), 2u);
    EXPECT_EQ(spec.boxes[0].copies, 1);
    EXPECT_TRUE(spec.counts(spec.boxes[0]));
    EXPECT_EQ(spec.boxes[1].copies, 2);
    EXPECT_EQ(spec.counts(spec.boxes[1]), rank % 2 == 0);
    EXPECT_EQ(mesh.members(spec.copies_of(spec.boxes[1]), rank),
              rank < 2 ? (std::vector{0, 1}) : (std::vector{2, 3}));
    EXPECT_EQ(mesh.members(spec.copies_of(spec.boxes[0]), rank), std::vector{rank});
  }
}

TEST(ShardSpec, VocabulariesArePaddedToEqualParts) {
  const MeshShape mesh(4, {.tensor = 4});
  const ShardRequest table{"wte", {10, 3}, SplitRule::vocabulary(), -1, {}};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(make_shard_spec(table, mesh, rank).local, (Shape{3, 3}));
  }
  EXPECT_EQ(rows_of(make_shard_spec(table, mesh, 3)), (std::vector<int64_t>{9}));
  // One rank keeps the size that it has, whatever the multiple.
  const ShardRequest by_8{"wte", {10, 3}, SplitRule::vocabulary(8), -1, {}};
  EXPECT_EQ(make_shard_spec(by_8, MeshShape(), 0).local, (Shape{10, 3}));
  EXPECT_EQ(make_shard_spec(by_8, mesh, 0).local, (Shape{8, 3}));
  EXPECT_FALSE(make_shard_spec(by_8, mesh, 2).held());
}

TEST(ShardSpec, ExpertsLieOnTheirRanksAlone) {
  const MeshShape mesh(4, {.expert = 2});
  const ShardRequest stacked{"w", {4, 6, 2}, SplitRule::rows().of_experts(4), -1, {}};
  const ShardSpec spec = make_shard_spec(stacked, mesh, 1);
  EXPECT_EQ(spec.local, (Shape{2, 6, 2}));
  EXPECT_EQ(spec.boxes[0].global.offset, (std::vector<int64_t>{2, 0, 0}));
  EXPECT_EQ(spec.replicas, 2);
  EXPECT_EQ(mesh.members(spec.gradient, 1), (std::vector{1, 3}));
  const ShardRequest third{"w3", {6, 2}, SplitRule::rows().of_experts(4), 2, {}};
  EXPECT_FALSE(make_shard_spec(third, mesh, 0).held());
  EXPECT_EQ(make_shard_spec(third, mesh, 3).local, (Shape{6, 2}));
}

TEST(ShardSpec, ATiedParameterJoinsItsStages) {
  const MeshShape mesh(3, {.pipeline = 3});
  const ShardRequest tied{"wte", {4, 2}, SplitRule::vocabulary(), -1, {0, 2}};
  EXPECT_EQ(make_shard_spec(tied, mesh, 2).tied, MeshGroup::kEmbedding);
  EXPECT_FALSE(make_shard_spec(tied, mesh, 1).held());
  const ShardRequest first{"wpe", {4, 2}, SplitRule::whole(), -1, {0}};
  EXPECT_EQ(make_shard_spec(first, mesh, 0).tied, std::nullopt);
}

TEST(ShardSpec, OneProcessHoldsAllOfEverything) {
  nn::Parameter p;
  p.name = "w";
  p.shape = {6, 4};
  for (const SplitRule& rule : {SplitRule::whole(), SplitRule::rows(), SplitRule::columns(),
                                SplitRule::head_rows({{3, 2}}), SplitRule::vocabulary(16)}) {
    p.split = rule;
    const ShardSpec spec = nn::shard_spec(p, MeshShape(), 0);
    EXPECT_EQ(spec.local, p.shape);
    EXPECT_EQ(spec.replicas, 1);
    EXPECT_TRUE(spec.primary);
    EXPECT_FALSE(spec.cut);
  }
}

TEST(ShardSpec, RefusesWhatRanksCannotShare) {
  const MeshShape mesh(4, {.tensor = 4});
  const auto spec = [&](const ShardRequest& request) { make_shard_spec(request, mesh, 0); };
  EXPECT_EQ(error_of(Code::kConfig,
                     [&] {
                       spec({"h.0.k", {12, 2}, SplitRule::head_rows({{3, 4}}), -1, {}});
                     }),
            "parameter h.0.k of [12, 2]: the 4 ranks of the tensor axis cannot share 3 units of 4 "
            "(heads, or single rows or columns) equally; choose a size that divides them");
  EXPECT_NE(error_of(Code::kConfig,
                     [&] {
                       spec({"h.0.k", {12, 2}, SplitRule::head_rows({{3, 4, true}}), -1, {}});
                     })
                .find("choose a size that divides them, or a multiple of them"),
            std::string::npos);
  error_of(Code::kInvalidArgument, [&] {
    spec({"w", {4, 8}, SplitRule::head_columns({{2, 4, true}}), -1, {}});
  });
  error_of(Code::kInvalidArgument, [&] {
    spec({"w", {4, 8}, SplitRule::head_rows({{2, 4, true}}).of_experts(4), -1, {}});
  });
  error_of(Code::kConfig, [&] { spec({"w", {2, 6}, SplitRule::columns(), -1, {}}); });
  const MeshShape experts(3, {.expert = 3});
  EXPECT_NE(
      error_of(
          Code::kConfig,
          [&] {
            make_shard_spec({"w", {4, 2}, SplitRule::whole().of_experts(4), -1, {}}, experts, 0);
          })
          .find("cannot share 4 experts"),
      std::string::npos);
  // Rules that do not fit their shape.
  error_of(Code::kInvalidArgument, [&] { spec({"b", {8}, SplitRule::columns(), -1, {}}); });
  error_of(Code::kInvalidArgument, [&] {
    spec({"w", {8, 2}, SplitRule::head_rows({{4, 1}}), -1, {}});
  });
  error_of(Code::kInvalidArgument, [&] {
    spec({"w", {8, 2}, SplitRule::head_rows({{4, 4}}), -1, {}});
  });
  error_of(Code::kInvalidArgument, [&] {
    spec({"w", {5, 2}, SplitRule::whole().of_experts(4), -1, {}});
  });
  error_of(Code::kInvalidArgument, [&] { spec({"w", {5, 2}, SplitRule::whole(), 3, {}}); });
  error_of(Code::kInvalidArgument, [&] { spec({"w", {5, 2}, SplitRule::whole(), -1, {1}}); });
  error_of(Code::kUnsupported, [&] {
    make_shard_spec({"w", {4}, {}, -1, {0, 1}}, MeshShape(4, {.pipeline = 4}), 0);
  });
}

}  // namespace
}  // namespace ds
