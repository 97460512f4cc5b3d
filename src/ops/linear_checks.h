// Checks that the products of few rows and of quantised weights share.
#pragma once

#include "ops/checks.h"

namespace ds::ops {

inline int64_t row_count(const Tensor& x) {
  int64_t rows = 1;  // not elements / columns: columns may be 0
  for (int i = 0; i + 1 < x.dims(); ++i) rows *= x.size(i);
  return rows;
}

// x [..., k], bias [n] or empty, y [..., n] of the type of x or fp32; weight [n, k].
inline void check_product(const Op& op, const Tensor& x, const Shape& weight, const Tensor& bias,
                          const Tensor& y) {
  check_dense_float(x, op, "x");
  check_dense_float(y, op, "y");
  bool fits = weight.dims() == 2 && x.dims() >= 1 && x.dims() == y.dims() &&
              x.shape()[-1] == weight[1] && y.shape()[-1] == weight[0];
  for (int i = 0; fits && i + 1 < x.dims(); ++i) fits = x.size(i) == y.size(i);
  DS_CHECK(fits, Code::kInvalidArgument, op, ": x ", x.shape().text(), ", w ", weight.text(),
           " and y ", y.shape().text(), " do not fit together as [..., K], [N, K] and [..., N]");
  DS_CHECK(y.dtype() == x.dtype() || y.dtype() == DType::kFloat32, Code::kInvalidArgument, op,
           ": y cannot be ", dtype_name(y.dtype()), " while x is ", dtype_name(x.dtype()));
  if (bias) check_dense(bias, op, "bias", x.dtype(), Shape{weight[0]});
}

}  // namespace ds::ops
