#include "tensor/split_array.h"

#include <algorithm>
#include <cstring>

namespace ds {
namespace {

void copy_elements(const Tensor& from, const Tensor& to) {
  if (from.elements() > 0) std::memcpy(to.raw(), from.raw(), static_cast<size_t>(from.bytes()));
}

}  // namespace

SplitArray::SplitArray(Tensor memory, StoredArray rest)
    : ArrayStore(memory.dtype(), memory.elements() + rest.elements()),
      memory_(std::move(memory)),
      rest_(std::move(rest)) {
  DS_CHECK(!rest_ || rest_.dtype() == memory_.dtype(), Code::kInternal,
           "an array in two places has two types");
}

int64_t SplitArray::part_elements() const {
  return rest_ ? rest_.part_elements() : std::max<int64_t>(1, in_memory());
}

void SplitArray::prefetch(int64_t begin, int64_t end) {
  if (end > in_memory())
    rest_.prefetch(std::max(begin, in_memory()) - in_memory(), end - in_memory());
}

Tensor SplitArray::open(int64_t begin, int64_t end, Access access) {
  const int64_t here = in_memory();
  if (end <= here) return memory_.slice(0, begin, end);
  ArrayLease rest = rest_.map(std::max(begin, here) - here, end - here, access);
  Tensor out = rest.data();
  if (begin < here) {
    out = Tensor::empty(memory_.storage()->device(), dtype(), {end - begin}, MemoryTag::kIo);
    if (access != Access::kWrite) {
      copy_elements(memory_.slice(0, begin, here), out.slice(0, 0, here - begin));
      copy_elements(rest.data(), out.slice(0, here - begin, end - begin));
    }
  }
  open_.push_back({out.raw(), std::move(rest)});
  return out;
}

ArrayLease SplitArray::take(const Tensor& memory) noexcept {
  const auto it = std::ranges::find(open_, static_cast<const void*>(memory.raw()), &Open::at);
  if (it == open_.end()) return {};
  ArrayLease rest = std::move(it->rest);
  open_.erase(it);
  return rest;
}

void SplitArray::write_back(Tensor memory, int64_t begin) {
  ArrayLease rest = take(memory);
  if (!rest) return;  // it was a view
  const int64_t here = in_memory();
  if (begin < here) {
    copy_elements(memory.slice(0, 0, here - begin), memory_.slice(0, begin, here));
    copy_elements(memory.slice(0, here - begin, memory.elements()), rest.data());
  }
  rest.close();
}

void SplitArray::drop(Tensor memory) noexcept { take(memory); }

}  // namespace ds
