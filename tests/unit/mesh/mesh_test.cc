// The communicators of a mesh: who is in them, what they are called, and when they are made.
#include "mesh/mesh.h"

#include <gtest/gtest.h>

#include "thread_mesh.h"

namespace ds {
namespace {

using mesh_test::run_mesh;

// The ranks of a group, as its communicator brings them together.
std::vector<int> gathered_ranks(const Mesh& mesh, Communicator& group) {
  const auto device = make_cpu_device();
  const Tensor own = Tensor::empty(device, DType::kInt32, {1}, MemoryTag::kOther);
  const Tensor all = Tensor::empty(device, DType::kInt32, {group.size()}, MemoryTag::kOther);
  *own.data<int32_t>() = mesh.rank();
  group.all_gather(all, own)->wait();
  return {all.data<int32_t>(), all.data<int32_t>() + group.size()};
}

TEST(Mesh, CommunicatorsJoinTheMembersOfTheirGroups) {
  run_mesh(8, {.pipeline = 2, .tensor = 2, .expert = 2, .expert_tensor = 1}, [](const Mesh& mesh) {
    for (int i = 0; i < kMeshGroups; ++i) {
      const auto kind = static_cast<MeshGroup>(i);
      const std::shared_ptr<Communicator>& group = mesh.group(kind);
      ASSERT_NE(group, nullptr);
      EXPECT_EQ(group->rank(), mesh.rank(kind)) << mesh_group_name(kind);
      EXPECT_EQ(group->size(), mesh.size(kind)) << mesh_group_name(kind);
      EXPECT_EQ(gathered_ranks(mesh, *group), mesh.members(kind)) << mesh_group_name(kind);
    }
    EXPECT_EQ(mesh.group(MeshGroup::kTensor)->name(), "tensor");
    EXPECT_EQ(mesh.group(MeshGroup::kWorld), mesh.world());
    // The same ranks share one, and it is made once.
    EXPECT_EQ(mesh.group(MeshGroup::kDataContext), mesh.group(MeshGroup::kData));
    EXPECT_EQ(mesh.group(MeshGroup::kEmbedding), mesh.group(MeshGroup::kPipeline));
  });
}

TEST(Mesh, ARankOutsideAGroupHasNoCommunicator) {
  run_mesh(3, {.pipeline = 3}, [](const Mesh& mesh) {
    const bool middle = mesh.coordinate(MeshAxis::kPipeline) == 1;
    EXPECT_EQ(mesh.group(MeshGroup::kEmbedding) == nullptr, middle);
    EXPECT_EQ(mesh.rank(MeshGroup::kEmbedding) < 0, middle);
    // Asking again is no collective any more.
    EXPECT_EQ(mesh.group(MeshGroup::kEmbedding) == nullptr, middle);
    if (!middle) {
      EXPECT_EQ(gathered_ranks(mesh, *mesh.group(MeshGroup::kEmbedding)), (std::vector{0, 2}));
    }
  });
}

// With data parallelism alone everything stays as it is without a mesh: no group is made.
TEST(Mesh, DataParallelismIsTheWorldItself) {
  run_mesh(2, {}, [](const Mesh& mesh) {
    EXPECT_EQ(mesh.group(MeshGroup::kData), mesh.world());
    EXPECT_EQ(mesh.group(MeshGroup::kDataContext), mesh.world());
    EXPECT_EQ(mesh.group(MeshGroup::kExpertData), mesh.world());
    EXPECT_EQ(mesh.group(MeshGroup::kTensor)->size(), 1);
    EXPECT_EQ(mesh.rank(MeshGroup::kData), mesh.rank());
    const TrafficTable traffic = mesh.world()->traffic();
    EXPECT_EQ(traffic[static_cast<size_t>(Collective::kSplit)].calls, 0);
  });
}

TEST(Mesh, ErrorsNameTheGroup) {
  run_mesh(4, {.tensor = 2}, [](const Mesh& mesh) {
    const std::shared_ptr<Communicator>& tensor = mesh.group(MeshGroup::kTensor);
    const auto device = make_cpu_device();
    // The ranks of the group call different things.
    const Tensor x = Tensor::zeros(device, DType::kFloat32, {4 + mesh.rank(MeshGroup::kTensor)},
                                   MemoryTag::kOther);
    for (int call = 0; call < 2; ++call) {
      try {
        tensor->all_reduce(x, ReduceOp::kSum)->wait();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kComm);
        const std::string name = "(group \"tensor\" of ranks ";
        const size_t at = error.message().find(name);
        EXPECT_NE(at, std::string::npos) << error.message();
        EXPECT_EQ(error.message().find(name, at + 1), std::string::npos) << error.message();
      }
    }
  });
}

}  // namespace
}  // namespace ds
