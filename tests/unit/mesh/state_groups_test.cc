// The groups between which training state is spread, against lists made by walking the ranks, and
// the communicators that join them.
#include "mesh/state_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/text.h"
#include "fresh_seed.h"
#include "thread_mesh.h"

namespace ds {
namespace {

using mesh_test::error_of;
using mesh_test::run_mesh;

using Members = std::vector<int>;

// What a rank belongs to: the members of the group are walked, and those that are near, or as far
// from the beginning of their part, are kept.
Members walked(const Members& group, MeshPart part, int consecutive, int rank) {
  const auto place = [&](int other) {
    return static_cast<int>(std::ranges::find(group, other) - group.begin());
  };
  Members out;
  for (const int other : group) {
    const bool same_part = place(other) / consecutive == place(rank) / consecutive;
    const bool same_place = place(other) % consecutive == place(rank) % consecutive;
    if (part == MeshPart::kReplicas ? same_place : same_part) out.push_back(other);
  }
  return out;
}

TEST(MeshSubgroups, AreThoseOfWalkedRanks) {
  const uint64_t seed = ds::fresh_seed();
  std::mt19937_64 random(seed);
  const auto one_to = [&](int most) {
    return 1 + static_cast<int>(random() % static_cast<uint64_t>(most));
  };
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    const int part = one_to(4);
    const MeshSizes sizes{.pipeline = one_to(3), .context = one_to(2), .tensor = one_to(3)};
    const int model = sizes.pipeline * sizes.context * sizes.tensor;
    const MeshShape mesh(model * part * one_to(3), sizes);
    for (const MeshGroup of : {MeshGroup::kDataContext, MeshGroup::kData, MeshGroup::kExpertData}) {
      for (const MeshPart kind : {MeshPart::kShard, MeshPart::kReplicas, MeshPart::kSecondary}) {
        const MeshSubgroup subgroup{of, kind, part};
        for (int rank = 0; rank < mesh.world(); ++rank) {
          const Members members = mesh.members(subgroup, rank);
          EXPECT_EQ(members, walked(mesh.members(of, rank), kind, part, rank));
          EXPECT_EQ(mesh.size(subgroup), std::ssize(members));
          EXPECT_EQ(members[static_cast<size_t>(mesh.index_in(subgroup, rank))], rank);
        }
      }
    }
  }
}

TEST(MeshSubgroups, RefusePartsThatDoNotDivide) {
  const MeshShape mesh(8, {.tensor = 2});
  EXPECT_EQ(error_of(Code::kConfig,
                     [&] {
                       mesh.members({MeshGroup::kDataContext, MeshPart::kShard, 3}, 0);
                     }),
            "mesh: shard group: parts of 3 ranks do not divide the 4 ranks of the data+context "
            "group");
  error_of(Code::kConfig, [&] { mesh.size({MeshGroup::kTensor, MeshPart::kCopies, 0}); });
  // A stage between the first and the last has no embedding group, and no part of it.
  const MeshShape stages(3, {.pipeline = 3});
  EXPECT_TRUE(stages.members({MeshGroup::kEmbedding, MeshPart::kCopies, 2}, 1).empty());
  EXPECT_EQ(stages.index_in({MeshGroup::kEmbedding, MeshPart::kCopies, 2}, 1), -1);
}

// The ranks of the world that a group brings together.
Members gathered(const Mesh& mesh, const RankGroup& group) {
  const auto device = make_cpu_device();
  const Tensor own = Tensor::empty(device, DType::kInt32, {1}, MemoryTag::kOther);
  const Tensor all = Tensor::empty(device, DType::kInt32, {group.size}, MemoryTag::kOther);
  *own.data<int32_t>() = mesh.rank();
  group->all_gather(all, own)->wait();
  return {all.data<int32_t>(), all.data<int32_t>() + group.size};
}

// The communicator says of itself what the mesh says.
void expect_group(const Mesh& mesh, const RankGroup& group, const char* name,
                  const Members& members) {
  ASSERT_TRUE(group);
  EXPECT_EQ(group->name(), name);
  EXPECT_EQ(group.rank, group->rank());
  EXPECT_EQ(group.size, group->size());
  EXPECT_EQ(gathered(mesh, group), members) << name << " of rank " << mesh.rank();
}

TEST(StateGroups, SubdivideTheRanksThatReduceGradients) {
  run_mesh(8, {.tensor = 2}, [](const Mesh& mesh) {
    const StateGroups groups =
        make_state_groups(mesh, MeshGroup::kDataContext, {.shard = 2, .secondary = 4}, false);
    // Ranks of one tensor coordinate: 0 2 4 6 or 1 3 5 7.
    const int t = mesh.rank() % 2, data = mesh.rank() / 2;
    expect_group(mesh, groups.all, "data", {t, 2 + t, 4 + t, 6 + t});
    const int first = data / 2 * 4 + t, place = data % 2 * 2 + t;
    expect_group(mesh, groups.shard, "shard group", {first, first + 2});
    expect_group(mesh, groups.replicas, "replicas", {place, place + 4});
    expect_group(mesh, groups.secondary, "secondary shards", {t, 2 + t, 4 + t, 6 + t});
    EXPECT_EQ(groups.nodes, nullptr);
    // Asking again is no collective.
    EXPECT_EQ(mesh.placed({MeshGroup::kDataContext, MeshPart::kShard, 2}).comm, groups.shard.comm);
  });
}

TEST(StateGroups, OneCopyIsSharedByAll) {
  run_mesh(2, {}, [](const Mesh& mesh) {
    for (const int shard : {0, 2, 5}) {
      const StateGroups groups =
          make_state_groups(mesh, MeshGroup::kDataContext, {.shard = shard}, true);
      EXPECT_EQ(groups.shard.comm, mesh.world());
      EXPECT_FALSE(groups.replicas);
      EXPECT_FALSE(groups.secondary);
      EXPECT_EQ(groups.nodes, nullptr) << "there is one node";
    }
    const TrafficTable traffic = mesh.world()->traffic();
    EXPECT_EQ(traffic[static_cast<size_t>(Collective::kSplit)].calls, 0);
    EXPECT_EQ(traffic[static_cast<size_t>(Collective::kAllReduce)].calls, 0);
  });
}

TEST(StateGroups, GoByNodeWhereEveryShardGroupCan) {
  CommOptions options;
  options.ranks_per_node = 2;
  run_mesh(
      8, {},
      [](const Mesh& mesh) {
        const StateGroups groups =
            make_state_groups(mesh, MeshGroup::kDataContext, {.shard = 4}, true);
        ASSERT_NE(groups.nodes, nullptr);
        const int first = mesh.rank() / 4 * 4, place = mesh.rank() % 2;
        const int node = mesh.rank() / 2 * 2;
        expect_group(mesh, groups.nodes->node, "ranks of a node", {node, node + 1});
        expect_group(mesh, groups.nodes->across, "equal places of nodes",
                     {first + place, first + place + 2});
        EXPECT_EQ(groups.nodes->ranks, (Members{0, 1, 2, 3}));
        EXPECT_EQ(groups.nodes->rank_at(1, place), 2 + place);
        // A shard group on one node.
        const StateGroups near =
            make_state_groups(mesh, MeshGroup::kDataContext, {.shard = 2}, true);
        EXPECT_EQ(near.nodes, nullptr);
      },
      options);
}

// All of them on two nodes do; halves, each on one node, do not.
TEST(StateGroups, DoNotGoByNodeWhereOneShardGroupCannot) {
  CommOptions options;
  options.ranks_per_node = 4;
  run_mesh(
      8, {},
      [](const Mesh& mesh) {
        const StateGroups groups = make_state_groups(mesh, MeshGroup::kDataContext, {}, true);
        EXPECT_NE(groups.nodes, nullptr);
        const StateGroups halves =
            make_state_groups(mesh, MeshGroup::kDataContext, {.shard = 4}, true);
        EXPECT_EQ(halves.nodes, nullptr);
      },
      options);
}

TEST(StateGroups, RanksByNodeNeedEqualNodes) {
  const auto by_node = [](Members node_of) { return ranks_by_node(node_of); };
  EXPECT_EQ(by_node({5, 5, 5}).nodes, 0) << "one node";
  EXPECT_EQ(by_node({0, 0, 1}).nodes, 0) << "of two sizes";
  const RanksByNode mixed = by_node({7, 3, 3, 7});
  EXPECT_EQ(mixed.nodes, 2);
  EXPECT_EQ(mixed.ranks, (Members{0, 3, 1, 2}));
}

// A failed call names the group.
TEST(StateGroups, ErrorsNameTheGroup) {
  run_mesh(4, {}, [](const Mesh& mesh) {
    const StateGroups groups =
        make_state_groups(mesh, MeshGroup::kDataContext, {.shard = 2}, false);
    const Tensor x = Tensor::zeros(make_cpu_device(), DType::kFloat32, {4 + groups.replicas.rank},
                                   MemoryTag::kOther);
    const std::string text =
        error_of(Code::kComm, [&] { groups.replicas->all_reduce(x, ReduceOp::kSum)->wait(); });
    const int first = mesh.rank() % 2;
    const std::string name = str_cat("(group \"replicas\" of ranks ", first, ", ", first + 2, ")");
    EXPECT_NE(text.find(name), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace ds
