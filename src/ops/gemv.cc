#include "ops/gemv.h"

#include "kernels/gemv/gemv.h"
#include "kernels/matmul/matmul.h"
#include "ops/linear_checks.h"

namespace ds::ops {

bool few_rows(const Tensor& x) {
  // On a GPU the products of more rows are the vendor's.
  constexpr int64_t kMostOnGpu = 8;
  const int64_t rows = row_count(x);
  const bool on_gpu = x.storage() && x.storage()->device_kind() == DeviceKind::kCuda;
  return rows > 0 && rows <= (on_gpu ? kMostOnGpu : kernels::kMaxGemvRows);
}

bool sums_alike(DType type, bool codes, int64_t rows, int64_t others) {
  const auto both = [&](int64_t most) { return (rows <= most) == (others <= most); };
  const auto in = type == DType::kFloat32    ? kernels::MatmulType::kFloat32
                  : type == DType::kBFloat16 ? kernels::MatmulType::kBFloat16
                                             : kernels::MatmulType::kFloat16;
  // Weights in codes do not lie along k when they are multiplied as numbers.
  return both(kernels::kMaxGemvRows) && (codes || both(kernels::matmul_dot_rows(in)));
}

void gemv(const OpContext& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y) {
  const Op op{ctx, "gemv"};
  check_dense_float(w, op, "w");
  check_product(op, x, w.shape(), bias, y);
  DS_CHECK(w.dtype() == x.dtype(), Code::kInvalidArgument, op, ": x is ", dtype_name(x.dtype()),
           " but w is ", dtype_name(w.dtype()));
  DS_CHECK(row_count(x) <= kernels::kMaxGemvRows, Code::kInvalidArgument, op, ": x ",
           x.shape().text(), " has more than ", kernels::kMaxGemvRows, " rows");
  kernels::Gemv call;
  call.type = float_type(x);
  call.out = float_type(y);
  call.m = row_count(x);
  call.n = w.size(0);
  call.k = w.size(1);
  call.x = x.raw();
  call.w = w.raw();
  call.bias = bias.raw();
  call.y = y.raw();
  run(ctx, [&](auto& on) { kernels::gemv(call, on); });
}

}  // namespace ds::ops
