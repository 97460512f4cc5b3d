// What a key-value cache holds of a token in one layer, and how: numbers as the model computes with
// them, or 8-bit codes with a scale for each token and head.
#pragma once

#include <array>
#include <memory>

#include "models/architecture.h"
#include "tensor/tensor.h"

namespace ds::infer {

// Of n sequences or layers.
struct KvMemory {
  Tensor numbers;  // [n, parts, heads, tokens, size]; on a GPU [n, tokens, parts, heads, size]
  Tensor scales;   // fp32 [n, parts, heads, tokens] of codes, else empty
};

struct KvLayout {
  KvLayout(const models::ArchitectureInfo& info, DType type, const Device& device)
      : heads(info.kv_heads),
        size(info.head_size),
        values_in_keys(info.values_in_keys),
        dtype(type),
        by_head(device.kind() == DeviceKind::kCpu) {}

  int64_t heads, size;
  int64_t values_in_keys;  // as in ArchitectureInfo
  DType dtype;             // kInt8: codes
  // The tokens of a head follow each other, so that attention reads memory in its order.
  bool by_head;

  bool coded() const { return dtype == DType::kInt8; }
  // Keys, and values beside them where these are not channels of the keys.
  int64_t parts() const { return values_in_keys > 0 ? 1 : 2; }

  KvMemory make(const std::shared_ptr<Device>& device, int64_t n, int64_t tokens) const {
    const Shape shape =
        by_head ? Shape{n, parts(), heads, tokens, size} : Shape{n, tokens, parts(), heads, size};
    KvMemory memory{Tensor::empty(device, dtype, shape, MemoryTag::kKvCache), {}};
    if (coded()) {
      memory.scales =
          Tensor::empty(device, DType::kFloat32, {n, parts(), heads, tokens}, MemoryTag::kKvCache);
    }
    return memory;
  }

  // Part 0 is keys, 1 is values: [n, tokens, heads, size].
  Tensor part(const Tensor& numbers, int which) const {
    const int own = values_in_keys > 0 ? 0 : which;
    const Tensor rows = by_head ? tokens_first(numbers.select(1, own)) : numbers.select(2, own);
    return own == which ? rows : rows.slice(3, size - values_in_keys, size);
  }
  // [n, tokens, heads], or empty where numbers are no codes.
  Tensor scales(const KvMemory& memory, int which) const {
    return coded() ? tokens_first(memory.scales.select(1, which)) : Tensor();
  }

 private:
  // x [n, heads, tokens, ...] as [n, tokens, heads, ...].
  static Tensor tokens_first(const Tensor& x) {
    const auto first =
        static_cast<const std::byte*>(x.raw()) - static_cast<const std::byte*>(x.storage()->data());
    if (x.dims() == 3) {
      const std::array<int64_t, 3> strides{x.stride(0), x.stride(2), x.stride(1)};
      return {x.storage(), first, x.dtype(), Shape{x.size(0), x.size(2), x.size(1)}, strides};
    }
    const std::array<int64_t, 4> strides{x.stride(0), x.stride(2), x.stride(1), x.stride(3)};
    return {x.storage(), first, x.dtype(), Shape{x.size(0), x.size(2), x.size(1), x.size(3)},
            strides};
  }
};

}  // namespace ds::infer
