// Fuzzes the import of foreign tensors: the DLPack struct is made of the input's bytes. DLPack says
// nothing about the size of the memory behind a tensor, so memory is touched only when an
// independent computation finds that all elements lie in the real buffer.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "fuzz/fuzz_support.h"
#include "tensor/dlpack.h"
#include "tensor/dlpack_abi.h"

namespace {

using ds::fuzz::accepts;
using ds::fuzz::claim;
using ds::fuzz::Input;
using ds::fuzz::Wide;

constexpr size_t kBuffer = 16 << 10;
constexpr uint64_t kMostElements = 1 << 16;

// What the input describes.
struct Foreign {
  bool versioned = true;
  bool with_shape = true;
  bool with_strides = true;
  uint32_t major = 1;
  uint64_t flags = 0;
  void* stream = nullptr;
  DLTensor tensor{};
  // As long as ndim says, so that a sanitizer sees a read beyond; empty for an impossible ndim.
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

int64_t take_number(Input* in) {
  const auto kind = in->take<uint8_t>();
  if (kind < 200) return kind % 9;
  if (kind < 230) return in->take<int16_t>();
  if (kind < 240) return int64_t{1} << (in->take<uint8_t>() % 64);
  return in->take<int64_t>();
}

Foreign take_foreign(Input* in, std::byte* buffer) {
  Foreign f;
  const auto bits = in->take<uint8_t>();
  f.versioned = (bits & 1) == 0;
  f.with_shape = (bits & 2) == 0;
  f.with_strides = (bits & 4) == 0;
  if ((bits & 8) != 0) f.major = in->take<uint32_t>();
  if ((bits & 16) != 0) f.flags = in->take<uint64_t>();
  if ((bits & 32) != 0) f.stream = buffer;
  const bool odd_address = (bits & 64) != 0;
  DLTensor& t = f.tensor;
  t.data = (bits & 128) != 0 ? nullptr : buffer;
  if (odd_address && t.data != nullptr) t.data = buffer + in->take<uint8_t>() % 16;
  t.device.device_type = kDLCPU;
  const auto device = in->take<uint8_t>();
  if (device >= 250) {
    // Through memory: other libraries may put numbers here that the enumeration lacks.
    const auto code = in->take<int32_t>();
    std::memcpy(&t.device.device_type, &code, sizeof code);
  }
  t.device.device_id = in->take<uint8_t>() < 250 ? 0 : in->take<int32_t>();
  t.dtype.code = static_cast<uint8_t>(in->take<uint8_t>() % 9);
  const auto width = in->take<uint8_t>();
  t.dtype.bits = width < 240 ? static_cast<uint8_t>(8 << (width % 4)) : in->take<uint8_t>();
  t.dtype.lanes = in->take<uint8_t>() < 240 ? uint16_t{1} : in->take<uint16_t>();
  const auto dims = in->take<uint8_t>();
  t.ndim = dims < 240 ? dims % 11 : in->take<int32_t>();
  if (in->take<uint8_t>() >= 200) t.byte_offset = static_cast<uint64_t>(take_number(in));
  const int length = t.ndim >= 0 && t.ndim <= 64 ? t.ndim : 0;
  for (int i = 0; i < length; ++i) f.shape.push_back(take_number(in));
  for (int i = 0; i < length; ++i) f.strides.push_back(take_number(in));
  if (f.with_shape) t.shape = f.shape.data();
  if (f.with_strides) t.strides = f.strides.data();
  return f;
}

// Bytes from the tensor's address to the end of its last element, and the number of elements;
// nullopt when a size or stride is negative or the number is absurd.
struct Extent {
  Wide elements = 1;
  Wide bytes = 0;
};
std::optional<Extent> extent_of(const Foreign& f) {
  constexpr Wide kAbsurd = Wide{1} << 100;
  Extent out;
  Wide last = 0;
  for (size_t i = 0; i < f.shape.size(); ++i) {
    if (f.shape[i] < 0) return std::nullopt;
    out.elements = out.elements > kAbsurd && f.shape[i] > 0 ? kAbsurd : out.elements * f.shape[i];
  }
  if (out.elements == 0) return out;
  if (out.elements > kAbsurd / 2) return std::nullopt;
  Wide packed = 1;
  for (size_t i = f.shape.size(); i-- > 0;) {
    const Wide stride = f.with_strides && f.shape[i] > 1 ? Wide{f.strides[i]} : packed;
    if (stride < 0) return std::nullopt;
    last += Wide{f.shape[i] - 1} * stride;
    packed *= f.shape[i];
    if (last > kAbsurd) return std::nullopt;
  }
  out.bytes = (last + 1) * (f.tensor.dtype.bits / 8);
  return out;
}

// The elements in row-major order, gathered one by one.
std::string gather(const Foreign& f, const std::byte* first, size_t elements) {
  const size_t item = f.tensor.dtype.bits / 8u;
  std::string out;
  std::vector<int64_t> index(f.shape.size(), 0);
  for (size_t n = 0; n < elements; ++n) {
    int64_t place = 0, packed = 1;
    for (size_t d = f.shape.size(); d-- > 0;) {
      place += index[d] * (f.with_strides && f.shape[d] > 1 ? f.strides[d] : packed);
      packed *= f.shape[d];
    }
    out.append(reinterpret_cast<const char*>(first) + place * static_cast<int64_t>(item), item);
    for (size_t d = f.shape.size(); d-- > 0;) {
      if (++index[d] < f.shape[d]) break;
      index[d] = 0;
    }
  }
  return out;
}

void check_imported(const ds::Tensor& tensor, const Foreign& f, std::byte* buffer) {
  claim(f.tensor.dtype.lanes == 1, "elements have one lane");
  claim(f.tensor.device.device_type == kDLCPU || f.tensor.device.device_type == kDLCUDAHost,
        "tensors of other devices are refused");
  claim(f.stream == nullptr, "host tensors have no stream");
  claim(tensor.dims() == f.tensor.ndim, "dimensions are those given");
  claim(ds::dtype_size(tensor.dtype()) * 8 == f.tensor.dtype.bits, "element sizes are those given");
  for (int i = 0; i < tensor.dims(); ++i) {
    claim(tensor.size(i) == f.shape[static_cast<size_t>(i)], "sizes are those given");
  }
  const std::optional<Extent> extent = extent_of(f);
  claim(extent.has_value(), "tensors without a possible extent are refused");
  claim(tensor.elements() == extent->elements, "elements are the product of the sizes");
  claim(Wide{tensor.storage()->bytes()} >= extent->bytes, "the storage holds every element");
  if (extent->elements == 0) return;
  claim(f.tensor.data != nullptr, "elements need an address");
  const auto address = reinterpret_cast<uintptr_t>(f.tensor.data) + f.tensor.byte_offset;
  claim(reinterpret_cast<uintptr_t>(tensor.raw()) == address, "the offset counts");
  claim(address % (f.tensor.dtype.bits / 8u) == 0, "elements are aligned");
  const auto begin = reinterpret_cast<uintptr_t>(buffer);
  const bool inside = f.tensor.byte_offset <= kBuffer && address >= begin &&
                      Wide{address} + extent->bytes <= Wide{begin} + Wide{kBuffer};
  if (!inside || extent->elements > Wide{kMostElements}) return;

  const auto elements = static_cast<size_t>(extent->elements);
  const std::string expected = gather(f, buffer + (address - begin), elements);
  std::string packed(expected.size(), '\0');
  ds::copy_to_packed(tensor, packed.data());
  claim(packed == expected, "elements are read in row-major order");
  if (!tensor.storage()->read_only()) {
    ds::copy_from_packed(tensor, packed.data());
    claim(gather(f, buffer + (address - begin), elements) == expected,
          "writing back what was read changes nothing");
  }
}

// Out as a struct again and back in: the same tensor, which outlives nobody's memory.
void check_export(const ds::Tensor& tensor) {
  DLManagedTensorVersioned* const out = ds::export_dlpack(tensor, nullptr);
  ds::LentTensor again = ds::import_dlpack(out, nullptr);
  claim(again.tensor.shape() == tensor.shape() && again.tensor.dtype() == tensor.dtype(),
        "export and import give the same tensor");
  claim(tensor.elements() == 0 || again.tensor.raw() == tensor.raw(), "exports share the memory");
  claim(again.tensor.storage()->read_only() == tensor.storage()->read_only(),
        "exports keep what may be written");
  again.lease->arm();
}

template <class Managed>
void try_import(Managed* managed, const Foreign& f, std::byte* buffer) {
  int released = 0;
  managed->manager_ctx = &released;
  managed->deleter = [](Managed* self) { ++*static_cast<int*>(self->manager_ctx); };
  {
    ds::LentTensor lent;
    if (accepts([&] { lent = ds::import_dlpack(managed, f.stream); })) {
      check_imported(lent.tensor, f, buffer);
      lent.lease->arm();
      ds::fuzz::must_succeed("imported tensors can be exported",
                             [&] { check_export(lent.tensor); });
      claim(released == 0, "memory is kept while a tensor uses it");
    } else {
      claim(released == 0, "a refused tensor stays its owner's");
      claim(!lent.tensor, "a refused tensor leaves nothing");
      return;
    }
  }
  claim(released == 1, "memory is given back exactly once");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ds::fuzz::be_quiet();
  // Filled once: a target that writes back what it read leaves it as it was.
  static std::byte* const buffer = [] {
    auto* const bytes = static_cast<std::byte*>(std::aligned_alloc(64, kBuffer));
    claim(bytes != nullptr, "there is memory for the buffer");
    for (size_t i = 0; i < kBuffer; ++i) bytes[i] = static_cast<std::byte>(i * 37 + (i >> 8));
    return bytes;
  }();
  Input input(data, size);
  const Foreign f = take_foreign(&input, buffer);
  if (f.versioned) {
    DLManagedTensorVersioned managed{};
    managed.version = {f.major, 0};
    managed.flags = f.flags;
    managed.dl_tensor = f.tensor;
    try_import(&managed, f, buffer);
  } else {
    DLManagedTensor managed{};
    managed.dl_tensor = f.tensor;
    try_import(&managed, f, buffer);
  }
  return 0;
}
