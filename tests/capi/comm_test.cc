// Communicators through the C ABI: joining, collectives of one process, finalize and abort.
#include <gmock/gmock.h>

#include <thread>
#include <vector>

#include "capi/world.h"

namespace capi_test {
namespace {

using ::testing::HasSubstr;

ds_status put(void*, const char*, const void*, int64_t) { return DS_OK; }
ds_status get(void*, const char*, void*, int64_t, int64_t*) { return DS_OK; }

ds_status create(int32_t rank, int32_t size, const char* config = nullptr,
                 const ds_store* store = nullptr) {
  ds_comm* comm = nullptr;
  const ds_status status = ds_comm_create(rank, size, config, store, &comm);
  EXPECT_EQ(comm != nullptr, status == DS_OK);
  ds_comm_destroy(comm);
  return status;
}

TEST(CapiComm, RanksAndSizes) {
  EXPECT_DS_OK(create(0, 1));
  EXPECT_EQ(create(0, 0), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("world_size is 0"));
  EXPECT_EQ(create(0, -1), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create(-1, 1), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create(1, 1), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("rank is 1"));
  EXPECT_EQ(create(1, 2), DS_ERR_CONFIG);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("needs a place to meet"));
  World world;
  const ds_comm_info info = info_of(world.comm);
  EXPECT_EQ(info.rank, 0);
  EXPECT_EQ(info.size, 1);
  EXPECT_EQ(info.local_rank, 0);
  EXPECT_EQ(info.local_size, 1);
  EXPECT_EQ(info.node, 0);
  EXPECT_EQ(info.nodes, 1);
}

TEST(CapiComm, ConfigurationIsStrict) {
  EXPECT_DS_OK(create(0, 1, ""));
  EXPECT_DS_OK(create(0, 1, "{}"));
  EXPECT_DS_OK(create(0, 1, R"({"timeout_seconds": 0.5})"));
  const std::pair<const char*, const char*> bad[] = {
      {"[]", "an object is needed"},
      {"{", "communicator configuration"},
      {R"({"timeout": 3})", "timeout_seconds"},
      {R"({"nonsense": 3})", "/nonsense"},
      {R"({"timeout_seconds": "3"})", "must be a number"},
      {R"({"timeout_seconds": 0})", "between"},
      {R"({"timeout_seconds": -1})", "between"},
      {R"({"timeout_seconds": 1e300})", "between"},
      {R"({"timeout_seconds": 1, "timeout_seconds": 2})", "duplicate"},
  };
  for (const auto& [config, text] : bad) {
    EXPECT_EQ(create(0, 1, config), DS_ERR_CONFIG) << config;
    EXPECT_THAT(ds_last_error_message(), HasSubstr(text));
  }
}

TEST(CapiComm, StoreStruct) {
  ds_store store = {sizeof(ds_store), nullptr, put, get};
  EXPECT_DS_OK(create(0, 1, nullptr, &store));
  store.get = nullptr;
  EXPECT_EQ(create(0, 1, nullptr, &store), DS_ERR_INVALID_ARGUMENT);
  store = {0, nullptr, put, get};
  EXPECT_EQ(create(0, 1, nullptr, &store), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("struct_size"));
}

TEST(CapiComm, CollectivesOfOneProcess) {
  World world;
  ASSERT_DS_OK(ds_comm_all_reduce(world.comm, world.tensor, DS_REDUCE_SUM));
  float values[6];
  ASSERT_DS_OK(ds_tensor_read(world.tensor, values, sizeof(values)));
  EXPECT_THAT(values, ::testing::ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_DS_OK(ds_comm_barrier(world.comm));
  EXPECT_DS_OK(ds_comm_all_reduce(world.comm, world.ids, DS_REDUCE_SUM));
  EXPECT_EQ(ds_comm_all_reduce(world.comm, world.ids, DS_REDUCE_AVERAGE), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("int32"));
  const int64_t shape[] = {2, 2}, strides[] = {1, 2};
  float memory[4] = {};
  ds_tensor* turned = nullptr;
  ASSERT_DS_OK(
      ds_tensor_from_buffer(memory, DS_FLOAT32, shape, strides, 2, nullptr, nullptr, &turned));
  EXPECT_EQ(ds_comm_all_reduce(world.comm, turned, DS_REDUCE_SUM), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("contiguous"));
  ds_tensor_destroy(turned);
}

TEST(CapiComm, Finalize) {
  World world;
  ASSERT_DS_OK(ds_comm_finalize(world.comm));
  EXPECT_DS_OK(ds_comm_finalize(world.comm));
  EXPECT_EQ(ds_comm_barrier(world.comm), DS_ERR_STATE);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("finalized"));
  EXPECT_EQ(ds_comm_all_reduce(world.comm, world.tensor, DS_REDUCE_SUM), DS_ERR_STATE);
  EXPECT_DS_OK(ds_comm_abort(world.comm));
  EXPECT_EQ(ds_comm_barrier(world.comm), DS_ERR_STATE);
  EXPECT_EQ(info_of(world.comm).size, 1);
}

TEST(CapiComm, AbortFromAnotherThread) {
  World world;
  std::thread([&] { EXPECT_DS_OK(ds_comm_abort(world.comm)); }).join();
  EXPECT_EQ(ds_comm_barrier(world.comm), DS_ERR_ABORTED);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("ds_comm_abort"));
  EXPECT_EQ(ds_comm_all_reduce(world.comm, world.tensor, DS_REDUCE_SUM), DS_ERR_ABORTED);
  EXPECT_EQ(ds_comm_finalize(world.comm), DS_ERR_ABORTED);
  EXPECT_DS_OK(ds_comm_abort(world.comm));
}

}  // namespace
}  // namespace capi_test
