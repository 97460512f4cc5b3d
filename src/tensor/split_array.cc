#include "tensor/split_array.h"

#include <algorithm>
#include <cstring>

namespace ds {
namespace {

void copy_elements(const Tensor& from, const Tensor& to) {
  if (from.elements() > 0) std::memcpy(to.raw(), from.raw(), static_cast<size_t>(from.bytes()));
}

}  // namespace

SplitArray::SplitArray(StoredArray first, StoredArray rest)
    : ArrayStore(first.dtype(), first.elements() + rest.elements()),
      first_(std::move(first)),
      rest_(std::move(rest)) {
  DS_CHECK(!rest_ || rest_.dtype() == first_.dtype(), Code::kInternal,
           "an array in two places has two types");
}

int64_t SplitArray::part_elements() const {
  int64_t part = std::max<int64_t>(1, elements());
  for (const StoredArray* const array : {&first_, &rest_}) {
    if (*array && !array->in_memory()) part = std::min(part, array->part_elements());
  }
  return part;
}

void SplitArray::prefetch(int64_t begin, int64_t end) {
  const int64_t here = first_.elements();
  if (begin < here) first_.prefetch(begin, std::min(end, here));
  if (end > here) rest_.prefetch(std::max(begin, here) - here, end - here);
}

void SplitArray::flush() {
  first_.flush();
  rest_.flush();
}

Tensor SplitArray::view(int64_t begin, int64_t end) const {
  const int64_t here = first_.elements();
  if (end <= here) return first_.view(begin, end);
  return begin < here ? Tensor() : rest_.view(begin - here, end - here);
}

Tensor SplitArray::open(int64_t begin, int64_t end, Access access) {
  const int64_t here = first_.elements();
  Open open;
  if (begin < here || end <= here) open.first = first_.map(begin, std::min(end, here), access);
  if (end > here) open.rest = rest_.map(std::max(begin, here) - here, end - here, access);
  const bool both = open.first && open.rest;
  Tensor out = both ? Tensor::empty(open.first.data().storage()->device(), dtype(), {end - begin},
                                    MemoryTag::kIo)
               : open.first ? open.first.data()
                            : open.rest.data();
  if (both && access != Access::kWrite) {
    copy_elements(open.first.data(), out.slice(0, 0, here - begin));
    copy_elements(open.rest.data(), out.slice(0, here - begin, end - begin));
  }
  const bool is_view = !both && (open.first ? open.first : open.rest).is_view();
  open.at = out.raw();
  if (!is_view) open_.push_back(std::move(open));
  return out;
}

SplitArray::Open SplitArray::take(const Tensor& memory) noexcept {
  const auto it = std::ranges::find(open_, static_cast<const void*>(memory.raw()), &Open::at);
  if (it == open_.end()) return {};
  Open open = std::move(*it);
  open_.erase(it);
  return open;
}

void SplitArray::write_back(Tensor memory, int64_t begin) {
  Open open = take(memory);  // nothing of a view
  if (open.first && open.rest) {
    const int64_t here = first_.elements() - begin;
    copy_elements(memory.slice(0, 0, here), open.first.data());
    copy_elements(memory.slice(0, here, memory.elements()), open.rest.data());
  }
  open.first.close();
  open.rest.close();
}

void SplitArray::drop(Tensor memory) noexcept { take(memory); }

}  // namespace ds
