// Shapes, storages and views.
#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "unit/base/expect_error.h"

namespace ds {
namespace {

using testing::expect_error;

TEST(DTypes, SizesAndNames) {
  EXPECT_EQ(dtype_size(DType::kFloat32), 4);
  EXPECT_EQ(dtype_size(DType::kBFloat16), 2);
  EXPECT_EQ(dtype_size(DType::kInt64), 8);
  EXPECT_EQ(dtype_size(DType::kBool), 1);
  EXPECT_EQ(dtype_name(DType::kBFloat16), "bfloat16");
  EXPECT_TRUE(dtype_is_floating(DType::kFloat16));
  EXPECT_FALSE(dtype_is_floating(DType::kInt32));
  for (const int32_t code : {-1, 0, 14, 1000, INT32_MIN, INT32_MAX}) EXPECT_FALSE(is_dtype(code));
  for (int32_t code = 1; code <= 13; ++code) {
    EXPECT_TRUE(is_dtype(code));
    EXPECT_GT(dtype_size(static_cast<DType>(code)), 0);
  }
}

TEST(Shapes, ElementsTextAndEquality) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.dims(), 3);
  EXPECT_EQ(shape.elements(), 24);
  EXPECT_EQ(shape[-1], 4);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape.text(), "[2, 3, 4]");
  EXPECT_EQ(shape, (Shape{2, 3, 4}));
  EXPECT_FALSE((shape == Shape{2, 3}));
  EXPECT_FALSE((shape == Shape{4, 3, 2}));
  EXPECT_EQ(Shape().elements(), 1);  // a scalar
  EXPECT_EQ(Shape().text(), "[]");
  EXPECT_EQ((Shape{5, 0, 7}).elements(), 0);
}

TEST(Shapes, OverflowAndNonsenseAreRefused) {
  expect_error(Code::kInvalidArgument, {"at most 8", "9"}, [] {
    Shape({1, 1, 1, 1, 1, 1, 1, 1, 1});
  });
  expect_error(Code::kInvalidArgument, {"dimension 1 is negative: -2"}, [] { Shape({3, -2}); });
  const int64_t big = int64_t{1} << 32;
  expect_error(Code::kInvalidArgument, {"[4294967296, 4294967296]", "too many elements"}, [&] {
    Shape({big, big});
  });
  expect_error(Code::kInvalidArgument, {"too many elements"}, [] { Shape({INT64_MAX}); });
  expect_error(Code::kInvalidArgument, {"too many elements"}, [&] { Shape({big, big, 0}); });
  expect_error(Code::kInvalidArgument, {"too many elements"}, [] {
    Shape({0, INT64_MAX, INT64_MAX});
  });
  // The largest that is allowed has byte counts that fit.
  const Shape most{INT64_MAX / 16};
  EXPECT_GT(most.elements() * 8, 0);
  EXPECT_NO_THROW(Shape({0, big, 1000}));
}

class Tensors : public ::testing::Test {
 protected:
  // 0, 1, 2, ... in the given shape.
  Tensor counted(const Shape& shape) {
    Tensor tensor = Tensor::empty(device_, DType::kInt32, shape, MemoryTag::kOther);
    std::iota(tensor.data<int32_t>(), tensor.data<int32_t>() + tensor.elements(), 0);
    return tensor;
  }
  int32_t at(const Tensor& tensor, const std::vector<int64_t>& index) {
    int64_t offset = 0;
    for (size_t i = 0; i < index.size(); ++i) {
      offset += index[i] * tensor.stride(static_cast<int>(i));
    }
    return tensor.data<int32_t>()[offset];
  }

  std::shared_ptr<Device> device_ = make_cpu_device();
};

TEST_F(Tensors, AreCountedUnderTheirTagWhileTheyLive) {
  {
    const Tensor a = Tensor::empty(device_, DType::kFloat32, {100}, MemoryTag::kGradients);
    const Tensor view = a.slice(0, 10, 20);
    EXPECT_GE(device_->account().now(MemoryTag::kGradients), 400);
    EXPECT_EQ(view.storage(), a.storage());
  }
  EXPECT_EQ(device_->account().now(MemoryTag::kGradients), 0);
}

TEST_F(Tensors, ViewsOutliveTheWhole) {
  Tensor part;
  {
    const Tensor whole = counted({10, 10});
    part = whole.select(0, 3);
  }
  EXPECT_EQ(at(part, {4}), 34);
}

TEST_F(Tensors, ZerosEmptyAndNone) {
  const Tensor zeros = Tensor::zeros(device_, DType::kFloat32, {3, 5}, MemoryTag::kOther);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(zeros.data<float>()[i], 0.0f);
  const Tensor none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.raw(), nullptr);
  const Tensor empty = Tensor::zeros(device_, DType::kFloat32, {0, 7}, MemoryTag::kOther);
  EXPECT_TRUE(empty);
  EXPECT_EQ(empty.elements(), 0);
  EXPECT_EQ(empty.bytes(), 0);
  EXPECT_TRUE(empty.contiguous());
}

TEST_F(Tensors, SlicesAndSelectionsReadTheRightPlaces) {
  const Tensor t = counted({2, 3, 4});
  const Tensor rows = t.slice(1, 1, 3);
  EXPECT_EQ(rows.shape(), (Shape{2, 2, 4}));
  EXPECT_FALSE(rows.contiguous());
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      for (int64_t k = 0; k < 4; ++k) EXPECT_EQ(at(rows, {i, j, k}), i * 12 + (j + 1) * 4 + k);
    }
  }
  const Tensor column = t.select(2, 3);
  EXPECT_EQ(column.shape(), (Shape{2, 3}));
  EXPECT_EQ(at(column, {1, 2}), 23);
  EXPECT_EQ(at(column, {0, 1}), 7);
  EXPECT_TRUE(t.slice(0, 1, 2).contiguous());
  EXPECT_TRUE(t.select(0, 1).contiguous());
  EXPECT_EQ(t.slice(0, 2, 2).elements(), 0);
  EXPECT_EQ(at(t.slice(0, 1, 2).slice(1, 2, 3).slice(2, 1, 2), {0, 0, 0}), 21);
}

TEST_F(Tensors, ViewsKeepTheElements) {
  const Tensor t = counted({4, 6});
  const Tensor v = t.view({2, 3, 4});
  EXPECT_EQ(v.raw(), t.raw());
  EXPECT_EQ(at(v, {1, 2, 3}), 23);
  EXPECT_EQ(t.slice(0, 1, 3).view({12}).data<int32_t>()[0], 6);
  expect_error(Code::kInternal, {"cannot view [4, 6] as [5, 5]"}, [&] { t.view({5, 5}); });
  expect_error(Code::kInternal, {"cannot view"}, [&] { t.slice(1, 0, 3).view({12}); });
}

TEST_F(Tensors, RangesOutsideAreRefused) {
  const Tensor t = counted({4, 6});
  const std::vector<std::array<int64_t, 3>> bad = {{2, 0, 1}, {-1, 0, 1}, {0, -1, 2},
                                                   {0, 3, 2}, {0, 0, 5},  {0, 5, 5}};
  for (const auto& [dim, begin, end] : bad) {
    expect_error(Code::kInternal, {"slice"},
                 [&, d = dim, b = begin, e = end] { t.slice(static_cast<int>(d), b, e); });
  }
  expect_error(Code::kInternal, {"slice"}, [&] { t.select(0, 4); });
  expect_error(Code::kInternal, {"leaves its storage"},
               [&] { Tensor(t.storage(), 4, DType::kInt32, {24}); });
  expect_error(Code::kInternal, {"leaves its storage"},
               [&] { Tensor(t.storage(), -4, DType::kInt32, {1}); });
}

TEST_F(Tensors, TypedAccessChecksTheType) {
  const Tensor t = counted({4});
  expect_error(Code::kInternal, {"int32", "float32"}, [&] { t.data<float>(); });
  EXPECT_EQ(t.reinterpret(DType::kUInt32).dtype(), DType::kUInt32);
  EXPECT_EQ(t.reinterpret(DType::kFloat32).data<float>(), t.raw());
  expect_error(Code::kInternal, {"cannot reinterpret"}, [&] { t.reinterpret(DType::kInt64); });
}

TEST_F(Tensors, StridesDecideContiguity) {
  const Tensor t = counted({6, 4});
  const auto with = [&](const Shape& shape, std::vector<int64_t> strides) {
    return Tensor(t.storage(), 0, DType::kInt32, shape, strides);
  };
  EXPECT_TRUE(with({6, 4}, {4, 1}).contiguous());
  EXPECT_FALSE(with({4, 6}, {1, 4}).contiguous());
  EXPECT_TRUE(with({1, 4}, {999, 1}).contiguous());  // a single index never moves
  EXPECT_TRUE(with({4, 1}, {1, 999}).contiguous());
  EXPECT_FALSE(with({2, 2}, {0, 1}).contiguous());
  EXPECT_TRUE(with({0, 3}, {7, 9}).contiguous());
  expect_error(Code::kInvalidArgument, {"as many strides"}, [&] { with({2, 2}, {1}); });
}

TEST_F(Tensors, BorrowedMemoryIsReleasedOnce) {
  int released = 0;
  std::vector<float> memory(8, 1.5f);
  {
    auto storage = std::make_shared<Storage>(DeviceKind::kCpu, 0, memory.data(), 32, true,
                                             [&] { ++released; });
    EXPECT_TRUE(storage->read_only());
    const Tensor t(storage, 8, DType::kFloat32, {3, 2});
    const Tensor copy = t.slice(0, 1, 2);
    storage.reset();
    EXPECT_EQ(copy.data<float>()[1], 1.5f);
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}

TEST_F(Tensors, CheckTensorNamesTheProblem) {
  const Tensor t = counted({2, 3});
  EXPECT_NO_THROW(check_tensor(t, "x", DType::kInt32, {2, 3}));
  expect_error(Code::kInvalidArgument, {"labels is missing"},
               [] { check_tensor({}, "labels", DType::kInt32, {1}); });
  expect_error(Code::kInvalidArgument, {"x must be float32, not int32"}, [&] {
    check_tensor(t, "x", DType::kFloat32, {2, 3});
  });
  expect_error(Code::kInvalidArgument, {"x must have shape [3, 2], not [2, 3]"}, [&] {
    check_tensor(t, "x", DType::kInt32, {3, 2});
  });
}

}  // namespace
}  // namespace ds
