// ds/tensor.hpp - Tensors, and the number types of 16 bits. Part of ds.hpp.
#ifndef DS_TENSOR_HPP
#define DS_TENSOR_HPP

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base.hpp"
#include "io.h"
#include "tensor.h"

namespace libds {

// Numbers of 16 bits: memory of tensors of DS_BFLOAT16 and DS_FLOAT16. They convert from and to
// float, rounding to the nearest, ties to even.
struct bfloat16 {
  uint16_t bits = 0;
  bfloat16() = default;
  explicit bfloat16(float value) noexcept {
    const auto wide = detail::bits_as<uint32_t>(value);
    const bool nan = (wide & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<uint16_t>(nan ? (wide >> 16 | 0x40u)
                                     : (wide + 0x7fffu + (wide >> 16 & 1u)) >> 16);
  }
  explicit operator float() const noexcept {
    return detail::bits_as<float>(static_cast<uint32_t>(bits) << 16);
  }
};
struct float16 {
  uint16_t bits = 0;
  float16() = default;
  explicit float16(float value) noexcept {
    const auto wide = detail::bits_as<uint32_t>(value);
    const uint32_t sign = wide >> 16 & 0x8000u, size = wide & 0x7fffffffu;
    uint32_t out = 0;
    if (size > 0x7f800000u) {
      out = 0x7e00u;  // NaN
    } else if (size >= 0x477ff000u) {
      out = 0x7c00u;  // infinity, and what rounds to it
    } else if (size >= 0x38800000u) {
      out = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    } else {
      // The sum ends at the place of the smallest number: the processor rounds it.
      out = detail::bits_as<uint32_t>(detail::bits_as<float>(size) + 0.5f) - 0x3f000000u;
    }
    bits = static_cast<uint16_t>(sign | out);
  }
  explicit operator float() const noexcept {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size >= 0x7c00u) return detail::bits_as<float>(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    // 2^112 moves the exponent where float has it, also for the numbers below the normal ones.
    const float value = detail::bits_as<float>(size << 13) * 5.192296858534828e33f;
    return detail::bits_as<float>(detail::bits_as<uint32_t>(value) | sign);
  }
};

namespace detail {

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<bfloat16> {
  static constexpr ds_dtype value = DS_BFLOAT16;
};
template <>
struct DtypeOf<float16> {
  static constexpr ds_dtype value = DS_FLOAT16;
};
template <>
struct DtypeOf<float> {
  static constexpr ds_dtype value = DS_FLOAT32;
};
template <>
struct DtypeOf<double> {
  static constexpr ds_dtype value = DS_FLOAT64;
};
template <>
struct DtypeOf<int8_t> {
  static constexpr ds_dtype value = DS_INT8;
};
template <>
struct DtypeOf<int16_t> {
  static constexpr ds_dtype value = DS_INT16;
};
template <>
struct DtypeOf<int32_t> {
  static constexpr ds_dtype value = DS_INT32;
};
template <>
struct DtypeOf<int64_t> {
  static constexpr ds_dtype value = DS_INT64;
};
template <>
struct DtypeOf<uint8_t> {
  static constexpr ds_dtype value = DS_UINT8;
};
template <>
struct DtypeOf<uint16_t> {
  static constexpr ds_dtype value = DS_UINT16;
};
template <>
struct DtypeOf<uint32_t> {
  static constexpr ds_dtype value = DS_UINT32;
};
template <>
struct DtypeOf<uint64_t> {
  static constexpr ds_dtype value = DS_UINT64;
};

}  // namespace detail

// The ds_dtype of a C++ number type.
template <class T>
inline constexpr ds_dtype kDtype = detail::DtypeOf<T>::value;

class Tensor : public detail::Handle<ds_tensor, ds_tensor_destroy> {
 public:
  using Handle::Handle;

  // Zeros.
  Tensor(ds_dtype dtype, const std::vector<int64_t>& shape) {
    ds_tensor* out = nullptr;
    check(ds_tensor_create(dtype, shape.data(), static_cast<int32_t>(shape.size()), &out));
    reset(out);
  }

  // Zeros in memory that stays in place; see ds_pinned_tensor.
  static Tensor pinned(ds_dtype dtype, const std::vector<int64_t>& shape) {
    ds_tensor* out = nullptr;
    check(ds_pinned_tensor(dtype, shape.data(), static_cast<int32_t>(shape.size()), &out));
    return Tensor(out);
  }
  bool is_pinned() const {
    ds_bool out = 0;
    check(ds_tensor_is_pinned(get(), &out));
    return out != 0;
  }

  // A copy of the caller's numbers; `size` must be the product of `shape`.
  template <class T>
  static Tensor from(const T* values, int64_t size, const std::vector<int64_t>& shape) {
    Tensor tensor(kDtype<T>, shape);
    tensor.write(values, size);
    return tensor;
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, const std::vector<int64_t>& shape) {
    return from(values.data(), static_cast<int64_t>(values.size()), shape);
  }
  template <class T>
  static Tensor from(const std::vector<T>& values) {
    return from(values, {static_cast<int64_t>(values.size())});
  }

  // The caller's memory itself, which must live until `release` is called. Empty `strides` means
  // packed. When this throws, `release` is not called.
  static Tensor wrap(void* data, ds_dtype dtype, const std::vector<int64_t>& shape,
                     const std::vector<int64_t>& strides = {}, std::function<void()> release = {}) {
    if (!strides.empty() && strides.size() != shape.size()) {
      throw Error(DS_ERR_INVALID_ARGUMENT, "Tensor::wrap: as many strides as dimensions");
    }
    using Release = std::function<void()>;
    auto holder = release ? std::make_unique<Release>(std::move(release)) : nullptr;
    ds_tensor* out = nullptr;
    check(ds_tensor_from_buffer(data, dtype, shape.data(),
                                strides.empty() ? nullptr : strides.data(),
                                static_cast<int32_t>(shape.size()),
                                holder ? &call_and_delete : nullptr, holder.get(), &out));
    holder.release();
    return Tensor(out);
  }

  // On success the library owns `managed`; when this throws it remains the caller's.
  static Tensor from_dlpack(DLManagedTensorVersioned* managed, void* stream = nullptr) {
    ds_tensor* out = nullptr;
    check(ds_tensor_from_dlpack(managed, stream, &out));
    return Tensor(out);
  }
  static Tensor from_dlpack_legacy(DLManagedTensor* managed, void* stream = nullptr) {
    ds_tensor* out = nullptr;
    check(ds_tensor_from_dlpack_legacy(managed, stream, &out));
    return Tensor(out);
  }
  // The caller calls the deleter of the result once.
  DLManagedTensorVersioned* to_dlpack(void* stream = nullptr) const {
    DLManagedTensorVersioned* out = nullptr;
    check(ds_tensor_to_dlpack(get(), stream, &out));
    return out;
  }
  DLManagedTensor* to_dlpack_legacy(void* stream = nullptr) const {
    DLManagedTensor* out = nullptr;
    check(ds_tensor_to_dlpack_legacy(get(), stream, &out));
    return out;
  }

  // Type, shape, place and address.
  ds_tensor_info info() const {
    ds_tensor_info out = DS_TENSOR_INFO_INIT;
    check(ds_tensor_describe(get(), &out));
    return out;
  }
  ds_dtype dtype() const { return info().dtype; }
  int32_t ndim() const { return info().ndim; }
  ds_device_kind device() const { return info().device_kind; }
  int64_t elements() const { return info().elements; }
  double item() const {
    double out = 0;
    check(ds_tensor_item(get(), &out));
    return out;
  }
  std::vector<int64_t> shape() const {
    const ds_tensor_info of = info();
    return {of.shape, of.shape + of.ndim};
  }
  std::vector<int64_t> strides() const {
    const ds_tensor_info of = info();
    return {of.strides, of.strides + of.ndim};
  }
  int64_t size(int32_t dim) const { return shape().at(static_cast<size_t>(dim)); }
  void* data() const { return info().data; }

  // Copies `size` packed elements of type T; type and size must be the tensor's.
  template <class T>
  void read(T* values, int64_t size) const {
    require_dtype(kDtype<T>);
    check(ds_tensor_read(get(), values, size * static_cast<int64_t>(sizeof(T))));
  }
  template <class T>
  void write(const T* values, int64_t size) {
    require_dtype(kDtype<T>);
    check(ds_tensor_write(get(), values, size * static_cast<int64_t>(sizeof(T))));
  }
  template <class T>
  std::vector<T> to_vector() const {
    std::vector<T> out(static_cast<size_t>(elements()));
    read(out.data(), static_cast<int64_t>(out.size()));
    return out;
  }

 private:
  void require_dtype(ds_dtype wanted) const {
    if (dtype() != wanted) {
      throw Error(DS_ERR_INVALID_ARGUMENT, "the tensor's dtype is " + std::to_string(dtype()) +
                                               ", the caller's numbers are dtype " +
                                               std::to_string(wanted));
    }
  }
  static void call_and_delete(void* user_data) {
    const std::unique_ptr<std::function<void()>> holder(
        static_cast<std::function<void()>*>(user_data));
    try {
      (*holder)();
    } catch (...) {  // may run on any thread, inside the library
    }
  }
};

namespace detail {
inline std::vector<ds_tensor*> handles_of(const std::vector<const Tensor*>& tensors) {
  std::vector<ds_tensor*> out;
  for (const Tensor* const tensor : tensors) out.push_back(tensor->get());
  return out;
}
inline int64_t size_of(const std::vector<ds_tensor*>& list) {
  return static_cast<int64_t>(list.size());
}
}  // namespace detail

// Copies tensors of one type one after another.
inline Tensor flatten(const std::vector<const Tensor*>& tensors) {
  const std::vector<ds_tensor*> handles = detail::handles_of(tensors);
  ds_tensor* out = nullptr;
  check(ds_tensor_flatten(handles.data(), detail::size_of(handles), &out));
  return Tensor(out);
}
// Views of the pieces of a flat tensor in the shapes of others.
inline std::vector<Tensor> unflatten(const Tensor& flat,
                                     const std::vector<const Tensor*>& shapes_like) {
  const std::vector<ds_tensor*> handles = detail::handles_of(shapes_like);
  std::vector<ds_tensor*> views(handles.size());
  check(ds_tensor_unflatten(flat.get(), handles.data(), detail::size_of(handles), views.data()));
  std::vector<Tensor> out;
  for (ds_tensor* const view : views) out.emplace_back(view);
  return out;
}
// Codes of 8 or 4 bits and a scale per block.
inline std::pair<Tensor, Tensor> quantize(const Tensor& tensor, int32_t bits, int64_t block_size) {
  ds_tensor *codes = nullptr, *scales = nullptr;
  check(ds_tensor_quantize(tensor.get(), bits, block_size, &codes, &scales));
  return {Tensor(codes), Tensor(scales)};
}
inline void dequantize(const Tensor& codes, const Tensor& scales, int32_t bits, int64_t block_size,
                       Tensor& output) {
  check(ds_tensor_dequantize(codes.get(), scales.get(), bits, block_size, output.get()));
}
// How numbers become codes by groups: with minima or symmetric, and how they are rounded.
struct GroupFormat {
  int32_t bits = 8;
  int64_t group_size = 128;
  bool asymmetric = false;
  int64_t seed = -1;  // 0 or more: stochastic rounding
};
// Codes of 8 or 4 bits and a scale, or a scale and a minimum, per group.
inline std::pair<Tensor, Tensor> quantize_groups(const Tensor& tensor, const GroupFormat& format) {
  ds_tensor *codes = nullptr, *scales = nullptr;
  check(ds_tensor_quantize_groups(tensor.get(), format.bits, format.group_size, format.asymmetric,
                                  format.seed, &codes, &scales));
  return {Tensor(codes), Tensor(scales)};
}
inline void dequantize_groups(const Tensor& codes, const Tensor& scales, const GroupFormat& format,
                              Tensor& output) {
  check(ds_tensor_dequantize_groups(codes.get(), scales.get(), format.bits, format.group_size,
                                    output.get()));
}
inline Tensor fake_quantize(const Tensor& tensor, const GroupFormat& format) {
  ds_tensor* out = nullptr;
  check(ds_tensor_fake_quantize(tensor.get(), format.bits, format.group_size, format.asymmetric,
                                format.seed, &out));
  return Tensor(out);
}

// Softmax of attention scores; `mask` may be null.
inline Tensor softmax(const Tensor& scores, const Tensor* mask = nullptr, double scale = 1,
                      bool causal = false) {
  ds_tensor* out = nullptr;
  check(ds_tensor_softmax(scores.get(), mask != nullptr ? mask->get() : nullptr, scale, causal,
                          &out));
  return Tensor(out);
}
inline Tensor softmax_backward(const Tensor& softmax, const Tensor& gradient, double scale = 1) {
  ds_tensor* out = nullptr;
  check(ds_tensor_softmax_backward(softmax.get(), gradient.get(), scale, &out));
  return Tensor(out);
}
// Packed projections to heads, with a bias unless null, and back.
inline Tensor split_heads(const Tensor& packed, const Tensor* bias, int32_t parts, int32_t heads) {
  ds_tensor* out = nullptr;
  check(ds_tensor_split_heads(packed.get(), bias != nullptr ? bias->get() : nullptr, parts, heads,
                              &out));
  return Tensor(out);
}
inline Tensor merge_heads(const Tensor& split) {
  ds_tensor* out = nullptr;
  check(ds_tensor_merge_heads(split.get(), &out));
  return Tensor(out);
}

}  // namespace libds

#endif  // DS_TENSOR_HPP
