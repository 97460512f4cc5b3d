// Reductions in a fixed order: equal bits for any thread count.
#pragma once

#include "base/exact_sum.h"
#include "ops/context.h"

namespace ds::ops {

double sum(const OpContext& ctx, const Tensor& x);
double sum_squares(const OpContext& ctx, const Tensor& x);  // products and sums in double
// The same, exact beyond blocks of 32 elements: parts of an array that was cut at multiples of that
// add up to what the whole gives, to the bit.
ExactSum exact_squares(const OpContext& ctx, const Tensor& x);
double max_abs(const OpContext& ctx, const Tensor& x);  // NaN if any element is NaN
// Index of the first element that is NaN or infinite, -1 if there is none.
int64_t first_non_finite(const OpContext& ctx, const Tensor& x);

// The same without waiting for the result, which is left where x lies: out [1], float64, or int64
// for an index; of exact sums [ExactSum::kWords], int64, with carries done.
void sum(const OpContext& ctx, const Tensor& x, Tensor& out);
void sum_squares(const OpContext& ctx, const Tensor& x, Tensor& out);
void exact_squares(const OpContext& ctx, const Tensor& x, Tensor& out);
void max_abs(const OpContext& ctx, const Tensor& x, Tensor& out);
void first_non_finite(const OpContext& ctx, const Tensor& x, Tensor& out);

// y[N] (fp32) += column sums of x[..., N], which may be some columns of a matrix.
void add_column_sums(const OpContext& ctx, const Tensor& x, Tensor& y);

}  // namespace ds::ops
