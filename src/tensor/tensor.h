// Tensors: a counted storage on a device, and views of it with shape and strides.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "base/bfloat16.h"
#include "base/error.h"
#include "base/float16.h"
#include "device/device.h"
#include "tensor/dtype.h"

namespace ds {

inline constexpr int kMaxDims = 8;

// Sizes of up to kMaxDims dimensions, each >= 0, whose product fits int64.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes);
  explicit Shape(std::span<const int64_t> sizes);

  int dims() const noexcept { return dims_; }
  int64_t operator[](int i) const { return sizes_[static_cast<size_t>(i < 0 ? dims_ + i : i)]; }
  int64_t elements() const noexcept { return elements_; }
  std::span<const int64_t> sizes() const noexcept {
    return {sizes_.data(), static_cast<size_t>(dims_)};
  }
  bool operator==(const Shape& other) const noexcept;
  std::string text() const;  // "[2, 3]"

 private:
  std::array<int64_t, kMaxDims> sizes_{};
  int64_t elements_ = 1;
  int dims_ = 0;
};

// Bytes with one owner: a device allocation, or memory lent from outside with a release function.
class Storage {
 public:
  Storage(std::shared_ptr<Device> device, int64_t bytes, MemoryTag tag);
  Storage(DeviceKind kind, int index, void* data, int64_t bytes, bool read_only,
          std::function<void()> release);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const noexcept { return data_; }
  int64_t bytes() const noexcept { return bytes_; }
  bool read_only() const noexcept { return read_only_; }
  DeviceKind device_kind() const noexcept { return kind_; }
  int device_index() const noexcept { return index_; }
  const std::shared_ptr<Device>& device() const noexcept { return device_; }

 private:
  std::shared_ptr<Device> device_;
  DeviceKind kind_;
  int index_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  MemoryTag tag_ = MemoryTag::kOther;
  bool read_only_ = false;
  std::function<void()> release_;
};

// C++ element type to DType, for typed access.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};
template <>
struct DTypeOf<bfloat16> {
  static constexpr DType value = DType::kBFloat16;
};
template <>
struct DTypeOf<float16> {
  static constexpr DType value = DType::kFloat16;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kInt8;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kInt64;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::kUInt16;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kUInt8;
};

class Tensor {
 public:
  Tensor() = default;  // "no tensor"
  // A contiguous view at a byte offset into storage.
  Tensor(std::shared_ptr<Storage> storage, int64_t byte_offset, DType dtype, const Shape& shape);
  Tensor(std::shared_ptr<Storage> storage, int64_t byte_offset, DType dtype, const Shape& shape,
         std::span<const int64_t> strides);

  static Tensor empty(const std::shared_ptr<Device>& device, DType dtype, const Shape& shape,
                      MemoryTag tag);
  static Tensor zeros(const std::shared_ptr<Device>& device, DType dtype, const Shape& shape,
                      MemoryTag tag);

  explicit operator bool() const noexcept { return storage_ != nullptr; }
  DType dtype() const noexcept { return dtype_; }
  const Shape& shape() const noexcept { return shape_; }
  int dims() const noexcept { return shape_.dims(); }
  int64_t size(int dim) const { return shape_[dim]; }
  int64_t stride(int dim) const {
    return strides_[static_cast<size_t>(dim < 0 ? dims() + dim : dim)];
  }
  int64_t elements() const noexcept { return shape_.elements(); }
  int64_t bytes() const noexcept { return elements() * dtype_size(dtype_); }
  bool contiguous() const noexcept;
  const std::shared_ptr<Storage>& storage() const noexcept { return storage_; }

  void* raw() const noexcept {
    return storage_ ? static_cast<std::byte*>(storage_->data()) + byte_offset_ : nullptr;
  }
  // Typed access; the dtype must match.
  template <class T>
  T* data() const {
    DS_CHECK(dtype_ == DTypeOf<T>::value, Code::kInternal, "tensor of ", dtype_name(dtype_),
             " read as ", dtype_name(DTypeOf<T>::value));
    return static_cast<T*>(raw());
  }

  // Views; all share the storage.
  Tensor view(const Shape& shape) const;                    // contiguous, same elements
  Tensor slice(int dim, int64_t begin, int64_t end) const;  // a range of one dimension
  Tensor select(int dim, int64_t index) const;              // one index, dimension removed
  Tensor reinterpret(DType dtype) const;                    // same element size

 private:
  std::shared_ptr<Storage> storage_;
  int64_t byte_offset_ = 0;
  DType dtype_ = DType::kFloat32;
  Shape shape_;
  std::array<int64_t, kMaxDims> strides_{};
};

// Throws kInvalidArgument naming `name` unless the tensor has this dtype and shape.
void check_tensor(const Tensor& tensor, const char* name, DType dtype, const Shape& shape);

}  // namespace ds
