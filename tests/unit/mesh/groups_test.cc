// Coordinates and groups of a mesh, against a reference that walks the ranks in nested loops, and
// against lists that other programs document.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <set>

#include "fresh_seed.h"
#include "mesh/mesh_shape.h"
#include "thread_mesh.h"

namespace ds {
namespace {

using mesh_test::error_of;

using Ranks = std::vector<int>;
using Groups = std::set<Ranks>;

Groups groups_of(const MeshShape& mesh, MeshGroup group) {
  Groups out;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    if (const Ranks members = mesh.members(group, rank); !members.empty()) out.insert(members);
  }
  return out;
}

MeshShape shape(int world, int pipeline, int context, int tensor, int expert = 1,
                int expert_tensor = 0) {
  return {world, MeshSizes{pipeline, context, tensor, expert, expert_tensor}};
}

// The coordinates of every rank, from loops in the documented order: the last is the fastest.
struct Reference {
  std::vector<std::map<std::string, int>> places;

  Reference(int world, const MeshSizes& sizes) {
    const int etp = sizes.expert_tensor == 0 ? sizes.tensor : sizes.expert_tensor;
    const int stage = world / sizes.pipeline;
    for (int pp = 0; pp < sizes.pipeline; ++pp) {
      const auto first = static_cast<size_t>(pp * stage);
      places.resize(first + static_cast<size_t>(stage));
      size_t at = first;
      for (int dp = 0; dp < stage / (sizes.context * sizes.tensor); ++dp) {
        for (int cp = 0; cp < sizes.context; ++cp) {
          for (int tp = 0; tp < sizes.tensor; ++tp) {
            places[at++] = {{"pp", pp}, {"dp", dp}, {"cp", cp}, {"tp", tp}};
          }
        }
      }
      at = first;
      for (int edp = 0; edp < stage / (sizes.expert * etp); ++edp) {
        for (int ep = 0; ep < sizes.expert; ++ep) {
          for (int e = 0; e < etp; ++e)
            places[at++].merge(std::map<std::string, int>({{"edp", edp}, {"ep", ep}, {"etp", e}}));
        }
      }
    }
  }

  // The ranks that agree in every one of `same`, in groups.
  Groups groups(const std::vector<std::string>& same) const {
    std::map<std::vector<int>, Ranks> found;
    for (size_t rank = 0; rank < places.size(); ++rank) {
      std::vector<int> key;
      for (const std::string& axis : same) key.push_back(places[rank].at(axis));
      found[key].push_back(static_cast<int>(rank));
    }
    Groups out;
    for (const auto& [key, ranks] : found) out.insert(ranks);
    return out;
  }
};

// What stays the same within a group of each kind.
const std::map<MeshGroup, std::vector<std::string>> kFixed = {
    {MeshGroup::kWorld, {}},
    {MeshGroup::kData, {"pp", "cp", "tp"}},
    {MeshGroup::kTensor, {"pp", "dp", "cp"}},
    {MeshGroup::kContext, {"pp", "dp", "tp"}},
    {MeshGroup::kPipeline, {"dp", "cp", "tp"}},
    {MeshGroup::kExpert, {"pp", "edp", "etp"}},
    {MeshGroup::kExpertTensor, {"pp", "edp", "ep"}},
    {MeshGroup::kExpertData, {"pp", "ep", "etp"}},
    {MeshGroup::kDataContext, {"pp", "tp"}},
    {MeshGroup::kTensorContext, {"pp", "dp"}},
    {MeshGroup::kModel, {"dp", "cp"}},
    {MeshGroup::kExpertModel, {"edp"}},
};

void compare(int world, const MeshSizes& sizes) {
  const MeshShape mesh(world, sizes);
  const Reference reference(world, sizes);
  for (const auto& [group, same] : kFixed) {
    SCOPED_TRACE(std::string(mesh_group_name(group)));
    EXPECT_EQ(groups_of(mesh, group), reference.groups(same));
  }
  Groups ends;
  for (Ranks ranks : reference.groups({"dp", "cp", "tp"})) {
    ends.insert(ranks.size() == 1 ? ranks : Ranks{ranks.front(), ranks.back()});
  }
  EXPECT_EQ(groups_of(mesh, MeshGroup::kEmbedding), ends);
  for (int rank = 0; rank < world; ++rank) {
    const auto& place = reference.places[static_cast<size_t>(rank)];
    EXPECT_EQ(mesh.rank_at(place.at("pp"), place.at("dp"), place.at("cp"), place.at("tp")), rank);
    EXPECT_EQ(mesh.coordinate(MeshAxis::kExpert, rank), place.at("ep"));
    EXPECT_EQ(mesh.coordinate(MeshAxis::kExpertData, rank), place.at("edp"));
    for (int i = 0; i < kMeshGroups; ++i) {
      const auto group = static_cast<MeshGroup>(i);
      const Ranks members = mesh.members(group, rank);
      const int index = mesh.index_in(group, rank);
      ASSERT_EQ(index < 0, members.empty());
      if (index < 0) continue;
      EXPECT_EQ(members[static_cast<size_t>(index)], rank);
      EXPECT_EQ(std::ssize(members), mesh.size(group));
      EXPECT_EQ(members, mesh.members(mesh.canonical(group), rank));
    }
  }
}

TEST(MeshGroups, AreThoseOfNestedLoops) {
  const uint64_t seed = ds::fresh_seed();
  std::mt19937_64 random(seed);
  const auto one_to = [&](int most) {
    return 1 + static_cast<int>(random() % static_cast<uint64_t>(most));
  };
  for (int round = 0; round < 100; ++round) {
    const MeshSizes sizes{one_to(4), one_to(3), one_to(3), one_to(3), one_to(2)};
    // A stage of as many ranks as both arrangements divide.
    const int stage = sizes.context * sizes.tensor * sizes.expert * sizes.expert_tensor * one_to(2);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    compare(stage * sizes.pipeline, sizes);
  }
}

// As the documentation of Megatron-LM's initialize_model_parallel lists them for 16 GPUs, tensor 2
// and pipeline 4.
TEST(MeshGroups, AreMegatronsForSixteenRanks) {
  const MeshShape mesh = shape(16, 4, 1, 2);
  EXPECT_EQ(groups_of(mesh, MeshGroup::kData),
            (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(groups_of(mesh, MeshGroup::kTensor),
            (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(groups_of(mesh, MeshGroup::kPipeline),
            (Groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
  EXPECT_EQ(groups_of(mesh, MeshGroup::kEmbedding), (Groups{{0, 12}, {1, 13}, {2, 14}, {3, 15}}));
  EXPECT_TRUE(mesh.members(MeshGroup::kEmbedding, 5).empty());
}

TEST(MeshGroups, OfExpertsCutTheRanksOfAStageAnew) {
  const MeshShape mesh = shape(8, 1, 1, 2, 4, 1);
  EXPECT_EQ(mesh.size(MeshAxis::kData), 4);
  EXPECT_EQ(mesh.size(MeshAxis::kExpertData), 2);
  EXPECT_EQ(groups_of(mesh, MeshGroup::kExpert), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(groups_of(mesh, MeshGroup::kExpertData), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  // Expert-tensor follows tensor unless it is given.
  EXPECT_EQ(shape(8, 1, 1, 2, 4).size(MeshAxis::kExpertTensor), 2);
  EXPECT_EQ(groups_of(shape(8, 1, 1, 2, 4), MeshGroup::kExpert),
            (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
}

TEST(MeshGroups, OfTheSameRanksHaveOneName) {
  const MeshShape data = shape(4, 1, 1, 1);
  EXPECT_EQ(data.canonical(MeshGroup::kData), MeshGroup::kWorld);
  EXPECT_EQ(data.canonical(MeshGroup::kDataContext), MeshGroup::kWorld);
  EXPECT_EQ(data.canonical(MeshGroup::kExpertData), MeshGroup::kWorld);
  EXPECT_EQ(shape(4, 1, 1, 2).canonical(MeshGroup::kDataContext), MeshGroup::kData);
  EXPECT_EQ(shape(4, 2, 1, 2).canonical(MeshGroup::kEmbedding), MeshGroup::kPipeline);
  EXPECT_EQ(shape(6, 3, 1, 2).canonical(MeshGroup::kEmbedding), MeshGroup::kEmbedding);
  EXPECT_EQ(shape(8, 1, 2, 2).canonical(MeshGroup::kDataContext), MeshGroup::kDataContext);
}

TEST(MeshShape, OneProcessIsAMeshOfOnes) {
  const MeshShape mesh;
  EXPECT_EQ(mesh.world(), 1);
  for (int i = 0; i < kMeshAxes; ++i) EXPECT_EQ(mesh.size(static_cast<MeshAxis>(i)), 1);
  for (int i = 0; i < kMeshGroups; ++i) {
    EXPECT_EQ(mesh.members(static_cast<MeshGroup>(i), 0), Ranks{0});
  }
  EXPECT_EQ(mesh.describe(0), "rank 0 of 1");
}

TEST(MeshShape, DescribesARankByItsAxes) {
  EXPECT_EQ(shape(16, 4, 1, 2).describe(5), "rank 5 of 16 (pipeline 1, data 0, tensor 1)");
  EXPECT_EQ(shape(4, 1, 1, 1, 2).describe(3), "rank 3 of 4 (data 3, expert-data 1, expert 1)");
}

TEST(MeshShape, RefusesSizesThatDoNotFit) {
  const std::string text = error_of(Code::kConfig, [] { shape(8, 3, 1, 1); });
  EXPECT_EQ(text,
            "mesh: pipeline 3 x context 1 x tensor 1 = 3 does not divide the world of 8 ranks; "
            "choose sizes whose product does");
  const std::string experts = error_of(Code::kConfig, [] { shape(8, 2, 1, 1, 3); });
  EXPECT_NE(experts.find("pipeline 2 x expert 3 x expert-tensor 1 = 6"), std::string::npos);
  EXPECT_NE(error_of(Code::kConfig, [] { shape(8, 1, 0, 1); }).find("context axis has size 0"),
            std::string::npos);
  // Sizes whose product fits no 32 bits.
  EXPECT_NE(
      error_of(Code::kConfig, [] { shape(8, 1 << 20, 1 << 20, 1 << 20); }).find("does not divide"),
      std::string::npos);
  error_of(Code::kInvalidArgument, [] { shape(0, 1, 1, 1); });
  error_of(Code::kInvalidArgument, [] { shape(4, 1, 1, 1).coordinate(MeshAxis::kData, 4); });
  error_of(Code::kInvalidArgument, [] { shape(4, 1, 1, 2).rank_at(0, 0, 0, 2); });
}

TEST(MeshShape, GroupsHaveNames) {
  for (int i = 0; i < kMeshGroups; ++i) {
    const auto group = static_cast<MeshGroup>(i);
    EXPECT_EQ(mesh_group_of(mesh_group_name(group)), group);
  }
  const std::string text = error_of(Code::kInvalidArgument, [] { mesh_group_of("tenser"); });
  EXPECT_NE(text.find("did you mean tensor?"), std::string::npos) << text;
}

}  // namespace
}  // namespace ds
