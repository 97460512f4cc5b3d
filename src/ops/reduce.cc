// Checks and launches of the reductions.
#include "ops/reduce.h"

#include "kernels/reduce/reduce.h"
#include "ops/checks.h"
#include "ops/rows.h"
#include "tensor/transfer.h"

namespace ds::ops {
namespace {

// Calls kernel(x, n, partials, out, on) with the types that it takes.
template <class Number, class Kernel>
void reduce(const Op& op, const Tensor& x, DType dtype, int64_t words, Tensor& out,
            const Kernel& kernel) {
  check_dense_float(x, op, "x");
  check_elements(out, op, "out", dtype, words);
  const int64_t n = x.elements();
  const int64_t each = words == 1 ? 1 : int64_t{sizeof(ExactSum) / sizeof(int64_t)};
  const Tensor scratch = op.ctx.workspace(dtype, {kernels::reduce_chunks(n) * each});
  with_float_type(x, [&](auto type) {
    run(op.ctx, [&](auto& on) {
      kernel(x.data<decltype(type)>(), n, scratch.data<Number>(), out.data<Number>(), on);
    });
  });
}

constexpr DType kNumber = DType::kFloat64, kIndex = DType::kInt64;

// The one number that reduce(out) leaves, on the host.
template <class Number, class Reduce>
Number value_of(const OpContext& ctx, DType dtype, const Reduce& reduce) {
  Tensor out = ctx.workspace(dtype, {1});
  reduce(out);
  Number value;
  copy_to_host(out, &value);
  return value;
}

}  // namespace

void sum(const OpContext& ctx, const Tensor& x, Tensor& out) {
  reduce<double>(Op{ctx, "sum"}, x, kNumber, 1, out,
                 [](auto&&... arguments) { kernels::sum(arguments...); });
}

void sum_squares(const OpContext& ctx, const Tensor& x, Tensor& out) {
  reduce<double>(Op{ctx, "sum_squares"}, x, kNumber, 1, out,
                 [](auto&&... arguments) { kernels::sum_squares(arguments...); });
}

void max_abs(const OpContext& ctx, const Tensor& x, Tensor& out) {
  reduce<double>(Op{ctx, "max_abs"}, x, kNumber, 1, out,
                 [](auto&&... arguments) { kernels::max_abs(arguments...); });
}

void first_non_finite(const OpContext& ctx, const Tensor& x, Tensor& out) {
  reduce<int64_t>(Op{ctx, "first_non_finite"}, x, kIndex, 1, out,
                  [](auto&&... arguments) { kernels::first_non_finite(arguments...); });
}

void exact_squares(const OpContext& ctx, const Tensor& x, Tensor& out) {
  reduce<int64_t>(Op{ctx, "exact_squares"}, x, kIndex, ExactSum::kWords, out,
                  [](auto&&... arguments) { kernels::exact_squares(arguments...); });
}

double sum(const OpContext& ctx, const Tensor& x) {
  return value_of<double>(ctx, kNumber, [&](Tensor& out) { sum(ctx, x, out); });
}

double sum_squares(const OpContext& ctx, const Tensor& x) {
  return value_of<double>(ctx, kNumber, [&](Tensor& out) { sum_squares(ctx, x, out); });
}

double max_abs(const OpContext& ctx, const Tensor& x) {
  return value_of<double>(ctx, kNumber, [&](Tensor& out) { max_abs(ctx, x, out); });
}

int64_t first_non_finite(const OpContext& ctx, const Tensor& x) {
  if (!ctx.device->computes()) return -1;  // its numbers are only counted
  return value_of<int64_t>(ctx, kIndex, [&](Tensor& out) { first_non_finite(ctx, x, out); });
}

ExactSum exact_squares(const OpContext& ctx, const Tensor& x) {
  Tensor out = ctx.workspace(kIndex, {ExactSum::kWords});
  exact_squares(ctx, x, out);
  ExactSum total;
  copy_to_host(out, total.words().data());
  return total;
}

void add_column_sums(const OpContext& ctx, const Tensor& x, Tensor& y) {
  const Op op{ctx, "add_column_sums"};
  check_float_type(x, op, "x");
  check_place(x, op, "x");
  DS_CHECK(x.dims() >= 1, Code::kInvalidArgument, op, ": x has no dimensions");
  const Rows in = as_rows(x, op, "x");
  check_elements(y, op, "y", DType::kFloat32, in.columns);
  if (x.elements() == 0) return;
  const Tensor scratch = ctx.workspace(DType::kFloat32, {kernels::row_chunks(in.rows), in.columns});
  with_float_type(x, [&](auto type) {
    run(ctx, [&](auto& on) {
      kernels::add_column_sums(x.data<decltype(type)>(), in.rows, in.columns, in.stride,
                               y.data<float>(), scratch.data<float>(), on);
    });
  });
}

}  // namespace ds::ops
