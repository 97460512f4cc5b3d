#include "nn/borrowed_memory.h"

#include <algorithm>

#include "ops/elementwise.h"

namespace ds::nn {

void BorrowedMemory::add(ParamId id, Tensor memory) {
  DS_CHECK(memory.contiguous() && memory.shape() == (*parameters_)[id].shape, Code::kInternal,
           "lent memory must be packed and of the parameter's shape");
  entries_.emplace_back(id, std::move(memory));
}

bool BorrowedMemory::has(ParamId id) const {
  return std::ranges::any_of(entries_, [id](const auto& entry) { return entry.first == id; });
}

void BorrowedMemory::write(const OpContext& ctx, ParamId id, const Tensor& value) const {
  for (const auto& [borrowed, memory] : entries_) {
    if (borrowed == id) write_to(ctx, value, memory);
  }
}

void BorrowedMemory::write_to(const OpContext& ctx, const Tensor& value, Tensor memory) {
  ops::cast(ctx, value, memory);
}

}  // namespace ds::nn
