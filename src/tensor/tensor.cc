#include "tensor/tensor.h"

#include <algorithm>

namespace ds {

Shape::Shape(std::initializer_list<int64_t> sizes)
    : Shape(std::span<const int64_t>(sizes.begin(), sizes.size())) {}

Shape::Shape(std::span<const int64_t> sizes) {
  DS_CHECK(sizes.size() <= kMaxDims, Code::kInvalidArgument, "a tensor has at most ", kMaxDims,
           " dimensions, not ", sizes.size());
  dims_ = static_cast<int>(sizes.size());
  bool empty = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    DS_CHECK(sizes[i] >= 0, Code::kInvalidArgument, "dimension ", i, " is negative: ", sizes[i]);
    sizes_[i] = sizes[i];
    empty = empty || sizes[i] == 0;
  }
  // 16 bytes is the largest element: byte counts must not overflow either. Empty shapes are held to
  // the same bound with their zeros left out, because strides multiply the other sizes.
  for (size_t i = 0; i < sizes.size(); ++i) {
    DS_CHECK(!__builtin_mul_overflow(elements_, std::max<int64_t>(sizes[i], 1), &elements_) &&
                 elements_ <= INT64_MAX / 16,
             Code::kInvalidArgument, "a tensor of shape ", text(), " has too many elements");
  }
  if (empty) elements_ = 0;
}

bool Shape::operator==(const Shape& other) const noexcept {
  return std::ranges::equal(sizes(), other.sizes());
}

std::string Shape::text() const {
  std::string out = "[";
  for (int i = 0; i < dims_; ++i) out += (i > 0 ? ", " : "") + std::to_string((*this)[i]);
  return out + "]";
}

Storage::Storage(std::shared_ptr<Device> device, int64_t bytes, MemoryTag tag)
    : device_(std::move(device)),
      kind_(device_->kind()),
      index_(device_->index()),
      data_(device_->allocate(bytes, tag)),
      bytes_(bytes),
      tag_(tag) {}

Storage::Storage(DeviceKind kind, int index, void* data, int64_t bytes, bool read_only,
                 std::function<void()> release)
    : kind_(kind),
      index_(index),
      data_(data),
      bytes_(bytes),
      read_only_(read_only),
      release_(std::move(release)) {}

Storage::~Storage() {
  if (device_) device_->deallocate(data_, bytes_, tag_);
  if (release_) release_();
}

Tensor::Tensor(std::shared_ptr<Storage> storage, int64_t byte_offset, DType dtype,
               const Shape& shape)
    : storage_(std::move(storage)), byte_offset_(byte_offset), dtype_(dtype), shape_(shape) {
  uint64_t stride = 1;  // wraps for absurd empty shapes, where strides do not matter
  for (int i = shape_.dims() - 1; i >= 0; --i) {
    strides_[static_cast<size_t>(i)] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(std::max<int64_t>(shape_[i], 1));
  }
  DS_CHECK(byte_offset_ >= 0 && byte_offset_ + bytes() <= storage_->bytes(), Code::kInternal,
           "a view of ", bytes(), " bytes at ", byte_offset_, " leaves its storage of ",
           storage_->bytes());
}

Tensor::Tensor(std::shared_ptr<Storage> storage, int64_t byte_offset, DType dtype,
               const Shape& shape, std::span<const int64_t> strides)
    : storage_(std::move(storage)), byte_offset_(byte_offset), dtype_(dtype), shape_(shape) {
  DS_CHECK(static_cast<int>(strides.size()) == shape.dims(), Code::kInvalidArgument, "a tensor of ",
           shape.dims(), " dimensions needs as many strides, not ", strides.size());
  std::ranges::copy(strides, strides_.begin());
}

Tensor Tensor::empty(const std::shared_ptr<Device>& device, DType dtype, const Shape& shape,
                     MemoryTag tag) {
  const int64_t bytes = shape.elements() * dtype_size(dtype);
  return {std::make_shared<Storage>(device, bytes, tag), 0, dtype, shape};
}

Tensor Tensor::zeros(const std::shared_ptr<Device>& device, DType dtype, const Shape& shape,
                     MemoryTag tag) {
  Tensor tensor = empty(device, dtype, shape, tag);
  device->clear(tensor.raw(), tensor.bytes(), device->default_stream());
  return tensor;
}

bool Tensor::contiguous() const noexcept {
  int64_t expected = 1;
  for (int i = dims() - 1; i >= 0; --i) {
    if (shape_[i] == 1) continue;
    if (strides_[static_cast<size_t>(i)] != expected) return elements() == 0;
    expected *= shape_[i];
  }
  return true;
}

Tensor Tensor::view(const Shape& shape) const {
  DS_CHECK(contiguous() && shape.elements() == elements(), Code::kInternal, "cannot view ",
           shape_.text(), " as ", shape.text());
  return {storage_, byte_offset_, dtype_, shape};
}

Tensor Tensor::slice(int dim, int64_t begin, int64_t end) const {
  DS_CHECK(dim >= 0 && dim < dims() && 0 <= begin && begin <= end && end <= shape_[dim],
           Code::kInternal, "slice [", begin, ", ", end, ") of dimension ", dim, " of ",
           shape_.text());
  Tensor out = *this;
  std::array<int64_t, kMaxDims> sizes{};
  std::ranges::copy(shape_.sizes(), sizes.begin());
  sizes[static_cast<size_t>(dim)] = end - begin;
  out.shape_ = Shape(std::span<const int64_t>(sizes.data(), static_cast<size_t>(dims())));
  out.byte_offset_ += begin * stride(dim) * dtype_size(dtype_);
  return out;
}

Tensor Tensor::select(int dim, int64_t index) const {
  Tensor out = slice(dim, index, index + 1);
  std::array<int64_t, kMaxDims> sizes{}, strides{};
  int n = 0;
  for (int i = 0; i < dims(); ++i) {
    if (i == dim) continue;
    sizes[static_cast<size_t>(n)] = shape_[i];
    strides[static_cast<size_t>(n++)] = stride(i);
  }
  out.shape_ = Shape(std::span<const int64_t>(sizes.data(), static_cast<size_t>(n)));
  out.strides_ = strides;
  return out;
}

Tensor Tensor::reinterpret(DType dtype) const {
  DS_CHECK(dtype_size(dtype) == dtype_size(dtype_), Code::kInternal, "cannot reinterpret ",
           dtype_name(dtype_), " as ", dtype_name(dtype));
  Tensor out = *this;
  out.dtype_ = dtype;
  return out;
}

void check_tensor(const Tensor& tensor, const char* name, DType dtype, const Shape& shape) {
  DS_CHECK(tensor, Code::kInvalidArgument, name, " is missing");
  DS_CHECK(tensor.dtype() == dtype, Code::kInvalidArgument, name, " must be ", dtype_name(dtype),
           ", not ", dtype_name(tensor.dtype()));
  DS_CHECK(tensor.shape() == shape, Code::kInvalidArgument, name, " must have shape ", shape.text(),
           ", not ", tensor.shape().text());
}

}  // namespace ds
