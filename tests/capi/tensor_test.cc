// Tensors through the C ABI: creation, wrapped memory, reading and writing with strides, values.
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/text.h"
#include "capi/world.h"
#include "fresh_seed.h"

namespace capi_test {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kDtypes[] = {DS_FLOAT32, DS_FLOAT64, DS_FLOAT16, DS_BFLOAT16, DS_INT8,
                               DS_INT16,   DS_INT32,   DS_INT64,   DS_UINT8,    DS_UINT16,
                               DS_UINT32,  DS_UINT64,  DS_BOOL};
constexpr int64_t kSizes[] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1};

TEST(CapiTensor, CreatedZeroOfEveryType) {
  for (size_t i = 0; i < std::size(kDtypes); ++i) {
    SCOPED_TRACE(kDtypes[i]);
    const int64_t shape[] = {3, 0, 5};
    for (const int32_t ndim : {0, 1, 3}) {
      ds_tensor* t = nullptr;
      ASSERT_DS_OK(ds_tensor_create(kDtypes[i], shape, ndim, &t));
      const ds_tensor_info info = info_of(t);
      const int64_t elements = info.elements;
      EXPECT_EQ(info.dtype, kDtypes[i]);
      EXPECT_EQ(info.ndim, ndim);
      EXPECT_EQ(info.device_kind, DS_DEVICE_CPU);
      EXPECT_EQ(elements, ndim == 0 ? 1 : ndim == 1 ? 3 : 0);
      EXPECT_EQ(info.data == nullptr, elements == 0);
      std::vector<unsigned char> bytes(static_cast<size_t>(elements * kSizes[i]), 0xFF);
      EXPECT_DS_OK(ds_tensor_read(t, bytes.data(), static_cast<int64_t>(bytes.size())));
      for (const unsigned char b : bytes) EXPECT_EQ(b, 0);
      EXPECT_EQ(ds_tensor_read(t, bytes.data(), static_cast<int64_t>(bytes.size()) + 1),
                DS_ERR_INVALID_ARGUMENT);
      ds_tensor_destroy(t);
    }
  }
}

TEST(CapiTensor, CreateRefusesNonsense) {
  const int64_t good[] = {2, 2, 2, 2, 2, 2, 2, 2, 2};
  const int64_t negative[] = {2, -1};
  const int64_t huge[] = {int64_t{1} << 40, int64_t{1} << 40};
  const int64_t empty_huge[] = {int64_t{1} << 40, int64_t{1} << 40, 0};
  ds_tensor* t = nullptr;
  for (const int32_t dtype : {0, 14, -1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(ds_tensor_create(dtype, good, 1, &t), DS_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(ds_last_error_message(), HasSubstr("dtype"));
  }
  for (const int32_t ndim : {-1, 9, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(ds_tensor_create(DS_INT8, good, ndim, &t), DS_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(ds_last_error_message(), HasSubstr("ndim"));
  }
  EXPECT_EQ(ds_tensor_create(DS_INT8, negative, 2, &t), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("negative"));
  EXPECT_EQ(ds_tensor_create(DS_INT8, huge, 2, &t), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("too many"));
  // Fits the arithmetic, but no memory.
  const int64_t big[] = {int64_t{1} << 55};
  EXPECT_EQ(ds_tensor_create(DS_INT8, big, 1, &t), DS_ERR_OUT_OF_MEMORY);
  EXPECT_EQ(t, nullptr);
  // Empty, but its strides would overflow.
  EXPECT_EQ(ds_tensor_create(DS_FLOAT64, empty_huge, 3, &t), DS_ERR_INVALID_ARGUMENT);
}

TEST(CapiTensor, QuestionsAboutDimensions) {
  const int64_t shape[] = {4, 5, 6};
  ds_tensor* t = nullptr;
  ASSERT_DS_OK(ds_tensor_create(DS_INT16, shape, 3, &t));
  const int64_t strides[] = {30, 6, 1};
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(info_of(t).shape[i], shape[i]);
    EXPECT_EQ(info_of(t).strides[i], strides[i]);
  }
  EXPECT_EQ(info_of(t).shape[3], 0);
  EXPECT_EQ(info_of(t).bytes, 240);
  EXPECT_EQ(info_of(t).contiguous, 1);
  EXPECT_EQ(info_of(t).read_only, 0);
  ds_tensor_destroy(t);
}

TEST(CapiTensor, ReadAndWriteFollowStrides) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(ds::str_cat("seed ", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const size_t type = random() % std::size(kDtypes);
    const int64_t item = kSizes[type];
    const int32_t ndim = static_cast<int32_t>(random() % 5);
    std::vector<int64_t> shape(static_cast<size_t>(ndim)), strides(shape.size());
    int64_t elements = 1, last = 0;
    for (size_t i = 0; i < shape.size(); ++i) {
      shape[i] = 1 + static_cast<int64_t>(random() % 4);
      strides[i] = static_cast<int64_t>(random() % 20);
      elements *= shape[i];
      last += (shape[i] - 1) * strides[i];
    }
    std::vector<uint64_t> memory(static_cast<size_t>((last + 1) * item / 8 + 1));
    for (uint64_t& word : memory) word = random();
    auto* const base = reinterpret_cast<unsigned char*>(memory.data());
    // Reference: element by element with a counter for each dimension.
    const auto offset_of = [&](int64_t n) {
      int64_t offset = 0;
      for (size_t i = shape.size(); i-- > 0;) {
        offset += n % shape[i] * strides[i];
        n /= shape[i];
      }
      return offset * item;
    };
    ds_tensor* t = nullptr;
    ASSERT_DS_OK(ds_tensor_from_buffer(base, kDtypes[type], shape.data(), strides.data(), ndim,
                                       nullptr, nullptr, &t));
    const auto bytes = static_cast<size_t>(elements * item);
    std::vector<unsigned char> packed(bytes);
    ASSERT_DS_OK(ds_tensor_read(t, packed.data(), static_cast<int64_t>(bytes)));
    for (int64_t n = 0; n < elements; ++n) {
      ASSERT_EQ(
          std::memcmp(packed.data() + n * item, base + offset_of(n), static_cast<size_t>(item)), 0);
    }
    for (unsigned char& b : packed) b = static_cast<unsigned char>(random());
    std::vector<unsigned char> expected(base, base + (last + 1) * item);
    for (int64_t n = 0; n < elements; ++n) {
      std::memcpy(expected.data() + offset_of(n), packed.data() + n * item,
                  static_cast<size_t>(item));
    }
    ASSERT_DS_OK(ds_tensor_write(t, packed.data(), static_cast<int64_t>(bytes)));
    ASSERT_EQ(std::memcmp(base, expected.data(), expected.size()), 0);
    ds_tensor_destroy(t);
  }
}

TEST(CapiTensor, BufferIsSharedAndReleasedOnce) {
  int64_t memory[6] = {1, 2, 3, 4, 5, 6};
  std::atomic<int> released{0};
  const auto release = [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); };
  const int64_t shape[] = {2, 3};
  ds_tensor* t = nullptr;
  ASSERT_DS_OK(ds_tensor_from_buffer(memory, DS_INT64, shape, nullptr, 2, release, &released, &t));
  const auto data = info_of(t).data;
  EXPECT_EQ(data, memory);
  const int64_t values[6] = {9, 8, 7, 6, 5, 4};
  ASSERT_DS_OK(ds_tensor_write(t, values, sizeof(values)));
  EXPECT_EQ(std::memcmp(memory, values, sizeof(values)), 0);
  EXPECT_EQ(released.load(), 0);
  ds_tensor_destroy(t);
  EXPECT_EQ(released.load(), 1);
  // A failing call releases nothing.
  const int64_t bad_strides[] = {3, -1};
  EXPECT_EQ(ds_tensor_from_buffer(memory, DS_INT64, shape, bad_strides, 2, release, &released, &t),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_tensor_from_buffer(memory, DS_INT64, shape, nullptr, 2, release, &released, nullptr),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(released.load(), 1);
}

TEST(CapiTensor, BufferRefusesNonsense) {
  alignas(8) unsigned char memory[64] = {};
  const int64_t shape[] = {2, 3};
  ds_tensor* t = nullptr;
  const auto wrap = [&](void* data, int32_t dtype, const int64_t* strides) {
    return ds_tensor_from_buffer(data, dtype, shape, strides, 2, nullptr, nullptr, &t);
  };
  EXPECT_EQ(wrap(memory + 1, DS_FLOAT32, nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("not aligned"));
  const int64_t far[] = {INT64_MAX, 1};
  EXPECT_EQ(wrap(memory, DS_FLOAT32, far), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("beyond any memory"));
  const int64_t farther[] = {INT64_MAX / 2, INT64_MAX / 2};
  EXPECT_EQ(wrap(memory, DS_INT8, farther), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(wrap(reinterpret_cast<void*>(UINTPTR_MAX - 3), DS_INT8, nullptr),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("address space"));
  EXPECT_EQ(t, nullptr);
  // An empty tensor needs no memory.
  const int64_t empty[] = {0, 3};
  EXPECT_DS_OK(ds_tensor_from_buffer(nullptr, DS_FLOAT32, empty, nullptr, 2, nullptr, nullptr, &t));
  ds_tensor_destroy(t);
}

TEST(CapiTensor, ItemOfEveryType) {
  const auto item = [](int32_t dtype, const void* bytes, int64_t size) {
    ds_tensor* t = nullptr;
    const int64_t shape[] = {1, 1};
    EXPECT_DS_OK(ds_tensor_create(dtype, shape, 2, &t));
    EXPECT_DS_OK(ds_tensor_write(t, bytes, size));
    double value = -1;
    EXPECT_DS_OK(ds_tensor_item(t, &value));
    ds_tensor_destroy(t);
    return value;
  };
  const auto of = [&](int32_t dtype, auto value) { return item(dtype, &value, sizeof(value)); };
  EXPECT_EQ(of(DS_FLOAT32, -1.5F), -1.5);
  EXPECT_EQ(of(DS_FLOAT64, 1e300), 1e300);
  EXPECT_EQ(of(DS_INT8, int8_t{-128}), -128);
  EXPECT_EQ(of(DS_INT16, int16_t{-30000}), -30000);
  EXPECT_EQ(of(DS_INT32, INT32_MIN), static_cast<double>(INT32_MIN));
  EXPECT_EQ(of(DS_INT64, int64_t{-9007199254740991}), -9007199254740991.0);
  EXPECT_EQ(of(DS_UINT8, uint8_t{255}), 255);
  EXPECT_EQ(of(DS_UINT16, uint16_t{65535}), 65535);
  EXPECT_EQ(of(DS_UINT32, UINT32_MAX), static_cast<double>(UINT32_MAX));
  EXPECT_EQ(of(DS_UINT64, UINT64_MAX), 18446744073709551616.0);
  EXPECT_EQ(of(DS_BOOL, uint8_t{1}), 1);
  EXPECT_EQ(of(DS_BFLOAT16, uint16_t{0x3FC0}), 1.5);
  // Half precision: one, the largest, the smallest subnormal, minus zero, infinity, NaN.
  EXPECT_EQ(of(DS_FLOAT16, uint16_t{0x3C00}), 1.0);
  EXPECT_EQ(of(DS_FLOAT16, uint16_t{0x7BFF}), 65504.0);
  EXPECT_EQ(of(DS_FLOAT16, uint16_t{0x0001}), std::ldexp(1.0, -24));
  EXPECT_EQ(of(DS_FLOAT16, uint16_t{0x03FF}), std::ldexp(1023.0, -24));
  EXPECT_TRUE(std::signbit(of(DS_FLOAT16, uint16_t{0x8000})));
  EXPECT_EQ(of(DS_FLOAT16, uint16_t{0xFC00}), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(of(DS_FLOAT16, uint16_t{0x7E00})));
  World world;
  double value = 5;
  EXPECT_EQ(ds_tensor_item(world.tensor, &value), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("[2, 3]"));
  EXPECT_EQ(value, 5);
}

}  // namespace
}  // namespace capi_test
