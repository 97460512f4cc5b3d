#include "tensor/lent_memory.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensor/transfer.h"

namespace ds {
namespace {

constexpr int64_t kMaxExtent = int64_t{1} << 56;  // bytes; beyond any address space

// Bytes from the first element to the end of the last one that the strides reach.
int64_t extent_bytes(const Shape& shape, std::span<const int64_t> strides, int64_t item) {
  if (shape.elements() == 0) return 0;
  int64_t last = 0;
  bool overflow = false;
  for (int i = 0; i < shape.dims(); ++i) {
    const int64_t stride = strides[static_cast<size_t>(i)];
    DS_CHECK(stride >= 0, Code::kInvalidArgument, "stride ", i, " is negative: ", stride);
    int64_t reach = 0;
    overflow |= __builtin_mul_overflow(shape[i] - 1, stride, &reach);
    overflow |= __builtin_add_overflow(last, reach, &last);
  }
  DS_CHECK(!overflow && last < kMaxExtent / item, Code::kInvalidArgument,
           "the strides of a tensor of shape ", shape.text(), " reach beyond any memory");
  return (last + 1) * item;
}

// The given strides, except where they say nothing: dimensions of at most one element and empty
// tensors get packed ones, so that no later arithmetic on them can overflow.
std::array<int64_t, kMaxDims> useful_strides(const Shape& shape, std::span<const int64_t> given) {
  std::array<int64_t, kMaxDims> out{};
  uint64_t packed = 1;  // wraps for absurd empty shapes, where strides do not matter
  for (int i = shape.dims() - 1; i >= 0; --i) {
    const auto at = static_cast<size_t>(i);
    const bool use = !given.empty() && shape[i] > 1 && shape.elements() > 0;
    out[at] = use ? given[at] : static_cast<int64_t>(packed);
    packed *= static_cast<uint64_t>(std::max<int64_t>(shape[i], 1));
  }
  return out;
}

// Calls visit(address of a run, packed offset, run length) for runs of the innermost dimension.
template <class Visit>
void for_each_run(const Tensor& tensor, const Visit& visit) {
  if (tensor.elements() == 0) return;
  const int64_t item = dtype_size(tensor.dtype());
  const int inner = tensor.dims() - 1;
  const int64_t run = inner < 0 ? 1 : tensor.size(inner);
  std::array<int64_t, kMaxDims> index{};
  auto* const first = static_cast<std::byte*>(tensor.raw());
  int64_t place = 0;
  for (int64_t packed = 0; packed < tensor.elements(); packed += run) {
    visit(first + place, packed * item, run);
    for (int dim = inner - 1; dim >= 0; --dim) {
      const int64_t step = tensor.stride(dim) * item;
      place += step;
      if (++index[static_cast<size_t>(dim)] < tensor.size(dim)) break;
      place -= step * tensor.size(dim);
      index[static_cast<size_t>(dim)] = 0;
    }
  }
}

// Element sizes are known to the compiler in the inner loop.
void copy_run(std::byte* target, int64_t target_step, const std::byte* source, int64_t source_step,
              int64_t count, int64_t item) {
  const auto loop = [&]<size_t kItem>(std::integral_constant<size_t, kItem>) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(target + i * target_step, source + i * source_step, kItem);
    }
  };
  if (target_step == item && source_step == item) {
    std::memcpy(target, source, static_cast<size_t>(count * item));
  } else if (item == 1) {
    loop(std::integral_constant<size_t, 1>());
  } else if (item == 2) {
    loop(std::integral_constant<size_t, 2>());
  } else if (item == 4) {
    loop(std::integral_constant<size_t, 4>());
  } else {
    loop(std::integral_constant<size_t, 8>());
  }
}

// What the strides of a GPU's tensor reach, on the host.
struct ReachedOnHost {
  std::vector<std::byte> bytes;
  Tensor all;     // the same bytes on the GPU
  Tensor tensor;  // as the GPU's, over `bytes`
};

ReachedOnHost reached_on_host(const Tensor& tensor) {
  std::array<int64_t, kMaxDims> steps{};
  for (int i = 0; i < tensor.dims(); ++i) steps[static_cast<size_t>(i)] = tensor.stride(i);
  const std::span<const int64_t> strides(steps.data(), static_cast<size_t>(tensor.dims()));
  const int64_t bytes = extent_bytes(tensor.shape(), strides, dtype_size(tensor.dtype()));
  const auto* const first = static_cast<const std::byte*>(tensor.storage()->data());
  const auto offset = static_cast<const std::byte*>(tensor.raw()) - first;
  ReachedOnHost out;
  out.bytes.resize(static_cast<size_t>(bytes));
  out.all = Tensor(tensor.storage(), offset, DType::kUInt8, Shape{bytes});
  copy_to_host(out.all, out.bytes.data());
  auto storage = std::make_shared<Storage>(DeviceKind::kCpu, 0, out.bytes.data(), bytes, false,
                                           std::function<void()>());
  out.tensor = Tensor(std::move(storage), 0, tensor.dtype(), tensor.shape(), strides);
  return out;
}

int64_t inner_step(const Tensor& tensor, int64_t item) {
  return tensor.dims() == 0 ? item : tensor.stride(tensor.dims() - 1) * item;
}

}  // namespace

Lease::~Lease() {
  if (!armed_ || !release_) return;
  try {
    release_();
  } catch (...) {  // a release function has nobody to report to
  }
}

LentTensor lend_memory(const MemoryPlace& place, void* data, DType dtype, const Shape& shape,
                       std::span<const int64_t> strides, bool read_only,
                       std::function<void()> release) {
  const int64_t item = dtype_size(dtype);
  DS_CHECK(strides.empty() || strides.size() == static_cast<size_t>(shape.dims()),
           Code::kInvalidArgument, "shape ", shape.text(), " comes with ", strides.size(),
           " strides");
  const std::array<int64_t, kMaxDims> useful = useful_strides(shape, strides);
  strides = {useful.data(), static_cast<size_t>(shape.dims())};
  const int64_t bytes = extent_bytes(shape, strides, item);
  if (bytes > 0) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    DS_CHECK(address != 0, Code::kInvalidArgument, "data is NULL for a tensor of shape ",
             shape.text());
    DS_CHECK(address % static_cast<uintptr_t>(item) == 0, Code::kInvalidArgument, "data (", data,
             ") is not aligned to the ", item, " bytes of a ", dtype_name(dtype));
    DS_CHECK(address <= UINTPTR_MAX - static_cast<uintptr_t>(bytes), Code::kInvalidArgument,
             "a tensor of shape ", shape.text(), " at ", data, " leaves the address space");
  }
  auto lease = std::make_shared<Lease>(std::move(release));
  // The storage holds the lease through its release function, which has nothing else to do.
  auto storage = std::make_shared<Storage>(place.kind, place.index, data, bytes, read_only,
                                           [lease] { static_cast<void>(lease); });
  return {Tensor(std::move(storage), 0, dtype, shape, strides), std::move(lease)};
}

void copy_to_packed(const Tensor& tensor, void* packed) {
  if (!on_host(tensor)) return copy_to_packed(reached_on_host(tensor).tensor, packed);
  const int64_t item = dtype_size(tensor.dtype());
  if (tensor.contiguous()) {
    if (tensor.bytes() > 0) {
      std::memcpy(packed, tensor.raw(), static_cast<size_t>(tensor.bytes()));
    }
    return;
  }
  const int64_t step = inner_step(tensor, item);
  for_each_run(tensor, [&](const std::byte* address, int64_t offset, int64_t run) {
    copy_run(static_cast<std::byte*>(packed) + offset, item, address, step, run, item);
  });
}

void copy_from_packed(const Tensor& tensor, const void* packed) {
  if (!on_host(tensor)) {
    const ReachedOnHost reached = reached_on_host(tensor);
    copy_from_packed(reached.tensor, packed);
    return copy_from_host(reached.bytes.data(), reached.all);
  }
  const int64_t item = dtype_size(tensor.dtype());
  if (tensor.contiguous()) {
    if (tensor.bytes() > 0) {
      std::memcpy(tensor.raw(), packed, static_cast<size_t>(tensor.bytes()));
    }
    return;
  }
  const int64_t step = inner_step(tensor, item);
  for_each_run(tensor, [&](std::byte* address, int64_t offset, int64_t run) {
    copy_run(address, step, static_cast<const std::byte*>(packed) + offset, item, run, item);
  });
}

}  // namespace ds
