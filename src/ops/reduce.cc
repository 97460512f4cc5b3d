// Checks and launches of the reductions.
#include "ops/reduce.h"

#include "kernels/reduce/reduce.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

Tensor partials(const OpContext& ctx, DType dtype, int64_t n) {
  return ctx.workspace(dtype, {kernels::reduce_chunks(n)});
}

}  // namespace

double sum(const OpContext& ctx, const Tensor& x) {
  check_dense_float(x, Op{ctx, "sum"}, "x");
  const int64_t n = x.elements();
  const Tensor scratch = partials(ctx, DType::kFloat64, n);
  return with_float_type(x, [&](auto type) {
    return kernels::sum(x.data<decltype(type)>(), n, scratch.data<double>(), *ctx.pool);
  });
}

double sum_squares(const OpContext& ctx, const Tensor& x) {
  check_dense_float(x, Op{ctx, "sum_squares"}, "x");
  const int64_t n = x.elements();
  const Tensor scratch = partials(ctx, DType::kFloat64, n);
  return with_float_type(x, [&](auto type) {
    return kernels::sum_squares(x.data<decltype(type)>(), n, scratch.data<double>(), *ctx.pool);
  });
}

ExactSum exact_squares(const OpContext& ctx, const Tensor& x) {
  check_dense_float(x, Op{ctx, "exact_squares"}, "x");
  const int64_t n = x.elements();
  const int64_t words = kernels::reduce_chunks(n) * int64_t{sizeof(ExactSum) / sizeof(int64_t)};
  const Tensor scratch = ctx.workspace(DType::kInt64, {words});
  auto* const partials = reinterpret_cast<ExactSum*>(scratch.data<int64_t>());
  return with_float_type(x, [&](auto type) {
    return kernels::exact_squares(x.data<decltype(type)>(), n, partials, *ctx.pool);
  });
}

double max_abs(const OpContext& ctx, const Tensor& x) {
  check_dense_float(x, Op{ctx, "max_abs"}, "x");
  const int64_t n = x.elements();
  const Tensor scratch = partials(ctx, DType::kFloat64, n);
  return with_float_type(x, [&](auto type) {
    return kernels::max_abs(x.data<decltype(type)>(), n, scratch.data<double>(), *ctx.pool);
  });
}

int64_t first_non_finite(const OpContext& ctx, const Tensor& x) {
  check_dense_float(x, Op{ctx, "first_non_finite"}, "x");
  const int64_t n = x.elements();
  const Tensor scratch = partials(ctx, DType::kInt64, n);
  return with_float_type(x, [&](auto type) {
    return kernels::first_non_finite(x.data<decltype(type)>(), n, scratch.data<int64_t>(),
                                     *ctx.pool);
  });
}

void add_column_sums(const OpContext& ctx, const Tensor& x, Tensor& y) {
  const Op op{ctx, "add_column_sums"};
  check_dense_float(x, op, "x");
  DS_CHECK(x.dims() >= 1, Code::kInvalidArgument, op, ": x has no dimensions");
  const int64_t cols = x.size(-1);
  check_elements(y, op, "y", DType::kFloat32, cols);
  if (x.elements() == 0) return;
  const int64_t rows = x.elements() / cols;
  const Tensor scratch = ctx.workspace(DType::kFloat32, {kernels::row_chunks(rows), cols});
  with_float_type(x, [&](auto type) {
    run_on_cpu(ctx, [&](auto& on) {
      kernels::add_column_sums(x.data<decltype(type)>(), rows, cols, y.data<float>(),
                               scratch.data<float>(), on);
    });
  });
}

}  // namespace ds::ops
