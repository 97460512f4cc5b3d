// Tensors as matrices whose rows lie one distance apart.
#pragma once

#include "ops/checks.h"

namespace ds::ops {

// [..., columns] seen as a matrix.
struct Rows {
  int64_t rows;
  int64_t columns;
  int64_t stride;
};
inline Rows as_rows(const Tensor& tensor, const Op& op, const char* name) {
  DS_CHECK(tensor.dims() >= 1, Code::kInvalidArgument, op, ": ", name,
           " needs at least one dimension");
  const int64_t columns = tensor.size(-1);
  int64_t rows = 1;  // not elements / columns: columns may be 0
  for (int i = 0; i + 1 < tensor.dims(); ++i) rows *= tensor.size(i);
  if (tensor.contiguous()) return {rows, columns, columns};
  bool even = tensor.dims() >= 2 && tensor.stride(-1) == 1;
  for (int i = 0; i + 2 < tensor.dims(); ++i) {
    even = even && tensor.stride(i) == tensor.stride(i + 1) * tensor.size(i + 1);
  }
  DS_CHECK(even, Code::kInvalidArgument, op, ": ", name, " of shape ", tensor.shape().text(),
           " must be contiguous, or columns of a contiguous matrix");
  return {rows, columns, tensor.stride(-2)};
}

}  // namespace ds::ops
