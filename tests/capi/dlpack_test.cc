// DLPack through the C ABI: both structs, both ways, ownership, and hostile input.
#include <gmock/gmock.h>

#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#include "base/text.h"
#include "capi/world.h"
#include "tensor/dlpack_abi.h"

namespace capi_test {
namespace {

using ::testing::HasSubstr;

// A foreign tensor that counts its deletions.
template <class Managed>
struct Foreign {
  explicit Foreign(bool with_deleter = true) {
    managed.dl_tensor = {values.data(), {kDLCPU, 0},    2, {kDLFloat, 32, 1},
                         shape.data(),  strides.data(), 0};
    managed.manager_ctx = this;
    if (with_deleter) {
      managed.deleter = [](Managed* self) {
        ++static_cast<Foreign*>(self->manager_ctx)->deletions;
      };
    }
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
      managed.version = {1, 0};
    }
  }

  ds_status take(ds_tensor** out, void* stream = nullptr) {
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
      return ds_tensor_from_dlpack(&managed, stream, out);
    } else {
      return ds_tensor_from_dlpack_legacy(&managed, stream, out);
    }
  }

  std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<int64_t> shape = {2, 3};
  std::vector<int64_t> strides = {4, 1};
  Managed managed = {};
  int deletions = 0;
};

template <class Managed>
class Dlpack : public ::testing::Test {
 protected:
  static ds_status give(const ds_tensor* tensor, void* stream, Managed** out) {
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
      return ds_tensor_to_dlpack(tensor, stream, out);
    } else {
      return ds_tensor_to_dlpack_legacy(tensor, stream, out);
    }
  }
};
using Structs = ::testing::Types<DLManagedTensorVersioned, DLManagedTensor>;
TYPED_TEST_SUITE(Dlpack, Structs);

TYPED_TEST(Dlpack, InSharesMemoryAndDeletesOnce) {
  Foreign<TypeParam> foreign;
  ds_tensor* t = nullptr;
  ASSERT_DS_OK(foreign.take(&t));
  const auto data = info_of(t).data;
  EXPECT_EQ(data, foreign.values.data());
  float packed[6];
  ASSERT_DS_OK(ds_tensor_read(t, packed, sizeof(packed)));
  EXPECT_THAT(packed, ::testing::ElementsAre(0, 1, 2, 4, 5, 6));
  EXPECT_EQ(foreign.deletions, 0);
  ds_tensor_destroy(t);
  EXPECT_EQ(foreign.deletions, 1);
}

TYPED_TEST(Dlpack, InWithoutDeleterStridesOrShape) {
  Foreign<TypeParam> foreign(/*with_deleter=*/false);
  foreign.managed.dl_tensor.strides = nullptr;
  ds_tensor* t = nullptr;
  ASSERT_DS_OK(foreign.take(&t));
  EXPECT_EQ(info_of(t).strides[0], 3);
  ds_tensor_destroy(t);
  foreign.managed.dl_tensor.ndim = 0;
  foreign.managed.dl_tensor.shape = nullptr;
  foreign.managed.dl_tensor.byte_offset = 8;
  ASSERT_DS_OK(foreign.take(&t));
  double value = 0;
  EXPECT_DS_OK(ds_tensor_item(t, &value));
  EXPECT_EQ(value, 2);
  ds_tensor_destroy(t);
}

TYPED_TEST(Dlpack, InAcceptsOddStridesWhereTheySayNothing) {
  Foreign<TypeParam> foreign;
  foreign.shape = {1, 3};
  foreign.strides = {-77, 1};
  ds_tensor* t = nullptr;
  ASSERT_DS_OK(foreign.take(&t));
  ds_tensor_destroy(t);
  foreign.shape = {0, 3};
  foreign.strides = {INT64_MIN, INT64_MIN};
  foreign.managed.dl_tensor.data = nullptr;
  ASSERT_DS_OK(foreign.take(&t));
  const auto data = info_of(t).data;
  EXPECT_EQ(data, nullptr);
  ds_tensor_destroy(t);
  EXPECT_EQ(foreign.deletions, 2);
}

TYPED_TEST(Dlpack, InEveryType) {
  struct Row {
    uint8_t code, bits;
    int32_t dtype;
  };
  const Row rows[] = {
      {kDLFloat, 32, DS_FLOAT32},   {kDLFloat, 64, DS_FLOAT64}, {kDLFloat, 16, DS_FLOAT16},
      {kDLBfloat, 16, DS_BFLOAT16}, {kDLInt, 8, DS_INT8},       {kDLInt, 16, DS_INT16},
      {kDLInt, 32, DS_INT32},       {kDLInt, 64, DS_INT64},     {kDLUInt, 8, DS_UINT8},
      {kDLUInt, 16, DS_UINT16},     {kDLUInt, 32, DS_UINT32},   {kDLUInt, 64, DS_UINT64},
      {kDLBool, 8, DS_BOOL}};
  for (const Row& row : rows) {
    Foreign<TypeParam> foreign;
    foreign.shape = {1, 1};
    foreign.managed.dl_tensor.dtype = {row.code, row.bits, 1};
    ds_tensor* t = nullptr;
    ASSERT_DS_OK(foreign.take(&t));
    const auto dtype = info_of(t).dtype;
    EXPECT_EQ(dtype, row.dtype);
    TypeParam* managed = nullptr;
    ASSERT_DS_OK(this->give(t, nullptr, &managed));
    EXPECT_EQ(managed->dl_tensor.dtype.code, row.code);
    EXPECT_EQ(managed->dl_tensor.dtype.bits, row.bits);
    EXPECT_EQ(managed->dl_tensor.dtype.lanes, 1);
    managed->deleter(managed);
    ds_tensor_destroy(t);
  }
}

TYPED_TEST(Dlpack, InRefusesAndLeavesItToTheCaller) {
  using F = Foreign<TypeParam>;
  struct Case {
    const char* text;
    ds_status status;
    std::function<void(F&)> spoil;
  };
  const Case cases[] = {
      {"data is NULL", DS_ERR_INVALID_ARGUMENT, [](F& f) { f.managed.dl_tensor.data = nullptr; }},
      {"shape is NULL", DS_ERR_INVALID_ARGUMENT, [](F& f) { f.managed.dl_tensor.shape = nullptr; }},
      {"9 dimensions", DS_ERR_INVALID_ARGUMENT, [](F& f) { f.managed.dl_tensor.ndim = 9; }},
      {"-1 dimensions", DS_ERR_INVALID_ARGUMENT, [](F& f) { f.managed.dl_tensor.ndim = -1; }},
      {"negative", DS_ERR_INVALID_ARGUMENT, [](F& f) { f.shape[1] = -3; }},
      {"too many elements", DS_ERR_INVALID_ARGUMENT,
       [](F& f) {
         f.shape = {INT64_MAX, INT64_MAX};
       }},
      {"stride 1 is negative", DS_ERR_INVALID_ARGUMENT, [](F& f) { f.strides[1] = -1; }},
      {"beyond any memory", DS_ERR_INVALID_ARGUMENT, [](F& f) { f.strides[0] = INT64_MAX; }},
      {"beyond any memory", DS_ERR_INVALID_ARGUMENT,
       [](F& f) {
         f.strides = {INT64_MAX / 4, INT64_MAX / 2};
       }},
      {"not aligned", DS_ERR_INVALID_ARGUMENT, [](F& f) { f.managed.dl_tensor.byte_offset = 2; }},
      {"address space", DS_ERR_INVALID_ARGUMENT,
       [](F& f) { f.managed.dl_tensor.byte_offset = UINT64_MAX - 3; }},
      {"lanes", DS_ERR_UNSUPPORTED, [](F& f) { f.managed.dl_tensor.dtype.lanes = 4; }},
      {"lanes", DS_ERR_UNSUPPORTED, [](F& f) { f.managed.dl_tensor.dtype.lanes = 0; }},
      {"code 5", DS_ERR_UNSUPPORTED,
       [](F& f) {
         f.managed.dl_tensor.dtype = {5, 64, 1};
       }},
      {"code 200", DS_ERR_UNSUPPORTED,
       [](F& f) {
         f.managed.dl_tensor.dtype = {200, 8, 1};
       }},
      {"4 bits", DS_ERR_UNSUPPORTED,
       [](F& f) {
         f.managed.dl_tensor.dtype = {kDLInt, 4, 1};
       }},
      {"cuda:0 cannot be used", DS_ERR_UNSUPPORTED,
       [](F& f) {
         f.managed.dl_tensor.device = {kDLCUDA, 0};
       }},
      {"CUDA managed", DS_ERR_UNSUPPORTED,
       [](F& f) { f.managed.dl_tensor.device.device_type = kDLCUDAManaged; }},
      {"Metal", DS_ERR_UNSUPPORTED,
       [](F& f) { f.managed.dl_tensor.device.device_type = kDLMetal; }},
      {"unknown (99)", DS_ERR_UNSUPPORTED,
       [](F& f) { f.managed.dl_tensor.device.device_type = static_cast<DLDeviceType>(99); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    F foreign;
    c.spoil(foreign);
    ds_tensor* t = nullptr;
    EXPECT_EQ(foreign.take(&t), c.status) << ds_last_error_message();
    EXPECT_THAT(ds_last_error_message(), HasSubstr(c.text));
    EXPECT_EQ(t, nullptr);
    EXPECT_EQ(foreign.deletions, 0);
  }
  F foreign;
  ds_tensor* t = nullptr;
  EXPECT_EQ(foreign.take(&t, &foreign), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("stream"));
  EXPECT_EQ(foreign.take(nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(foreign.deletions, 0);
}

TYPED_TEST(Dlpack, OutKeepsMemoryAlive) {
  World world;
  TypeParam* managed = nullptr;
  ASSERT_DS_OK(this->give(world.tensor, nullptr, &managed));
  ds_tensor_destroy(world.tensor);
  world.tensor = nullptr;
  const DLTensor& t = managed->dl_tensor;
  EXPECT_EQ(t.device.device_type, kDLCPU);
  EXPECT_EQ(t.device.device_id, 0);
  ASSERT_EQ(t.ndim, 2);
  EXPECT_EQ(t.shape[0], 2);
  EXPECT_EQ(t.shape[1], 3);
  EXPECT_EQ(t.strides[0], 3);
  EXPECT_EQ(t.strides[1], 1);
  const auto* const values =
      reinterpret_cast<const float*>(static_cast<char*>(t.data) + t.byte_offset);
  EXPECT_THAT(std::vector<float>(values, values + 6), ::testing::ElementsAre(0, 1, 2, 3, 4, 5));
  managed->deleter(managed);
}

TYPED_TEST(Dlpack, OutAndInAgain) {
  World world;
  TypeParam* managed = nullptr;
  ASSERT_DS_OK(this->give(world.tensor, nullptr, &managed));
  ds_tensor* again = nullptr;
  if constexpr (std::is_same_v<TypeParam, DLManagedTensorVersioned>) {
    ASSERT_DS_OK(ds_tensor_from_dlpack(managed, nullptr, &again));
  } else {
    ASSERT_DS_OK(ds_tensor_from_dlpack_legacy(managed, nullptr, &again));
  }
  const float seven = 7;
  void *first = nullptr, *second = nullptr;
  first = info_of(world.tensor).data;
  second = info_of(again).data;
  EXPECT_EQ(first, second);
  ds_tensor_destroy(world.tensor);
  world.tensor = nullptr;
  std::memcpy(second, &seven, sizeof(seven));
  float values[6];
  ASSERT_DS_OK(ds_tensor_read(again, values, sizeof(values)));
  EXPECT_EQ(values[0], 7);
  ds_tensor_destroy(again);
}

TYPED_TEST(Dlpack, OutRefusesStreams) {
  World world;
  TypeParam* managed = nullptr;
  EXPECT_EQ(this->give(world.tensor, &world, &managed), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("stream"));
  EXPECT_EQ(managed, nullptr);
}

TEST(DlpackVersioned, OtherMajorVersionsAreNotTouched) {
  // Only the version may be read: the rest lies on a page that cannot be.
  struct alignas(8) {
    DLPackVersion version;
  } only = {{2, 0}};
  ds_tensor* t = nullptr;
  for (const uint32_t major : {0u, 2u, 77u, UINT32_MAX}) {
    only.version.major = major;
    EXPECT_EQ(
        ds_tensor_from_dlpack(reinterpret_cast<DLManagedTensorVersioned*>(&only), nullptr, &t),
        DS_ERR_UNSUPPORTED);
    EXPECT_THAT(ds_last_error_message(), HasSubstr(ds::str_cat("version ", major, ".0")));
  }
  Foreign<DLManagedTensorVersioned> newer;
  newer.managed.version = {1, 99};
  ASSERT_DS_OK(newer.take(&t));
  ds_tensor_destroy(t);
}

TEST(DlpackVersioned, ReadOnlyIsHonoured) {
  Foreign<DLManagedTensorVersioned> foreign;
  foreign.managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  ds_tensor* t = nullptr;
  ASSERT_DS_OK(foreign.take(&t));
  const float values[6] = {};
  EXPECT_EQ(ds_tensor_write(t, values, sizeof(values)), DS_ERR_STATE);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("read-only"));
  EXPECT_EQ(foreign.values[1], 1);
  World world;
  EXPECT_EQ(ds_comm_all_reduce(world.comm, t, DS_REDUCE_SUM) == DS_OK, false);
  DLManagedTensorVersioned* versioned = nullptr;
  ASSERT_DS_OK(ds_tensor_to_dlpack(t, nullptr, &versioned));
  EXPECT_EQ(versioned->flags & DLPACK_FLAG_BITMASK_READ_ONLY, DLPACK_FLAG_BITMASK_READ_ONLY);
  EXPECT_EQ(versioned->version.major, 1u);
  DLManagedTensor* legacy = nullptr;
  EXPECT_EQ(ds_tensor_to_dlpack_legacy(t, nullptr, &legacy), DS_ERR_UNSUPPORTED);
  EXPECT_EQ(legacy, nullptr);
  ds_tensor_destroy(t);
  EXPECT_EQ(foreign.deletions, 0);  // the exported view holds it
  versioned->deleter(versioned);
  EXPECT_EQ(foreign.deletions, 1);
  ASSERT_DS_OK(ds_tensor_to_dlpack(world.tensor, nullptr, &versioned));
  EXPECT_EQ(versioned->flags, 0u);
  versioned->deleter(versioned);
}

}  // namespace
}  // namespace capi_test
