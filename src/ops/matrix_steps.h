// Steps between the products of an orthogonalisation; matrices are contiguous fp32.
#pragma once

#include "ops/context.h"

namespace ds::ops {

// y = a x + b y for equal shapes; y is not read when b is 0.
void combine(const OpContext& ctx, float a, const Tensor& x, float b, Tensor& y);
// y /= sqrt(squares[0]) + eps; squares is float64 [1], as sum_squares leaves it.
void divide_by_norm(const OpContext& ctx, const Tensor& squares, double eps, Tensor& y);
// y[i, i] += value for y [N, N].
void add_to_diagonal(const OpContext& ctx, float value, Tensor& y);

}  // namespace ds::ops
