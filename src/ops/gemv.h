// Linear layers on few rows: what decoding asks for. Sums do not depend on how many rows come
// together (kernels/gemv/gemv.h), unlike those of ops::linear.
#pragma once

#include "ops/context.h"

namespace ds::ops {

// Whether x [..., K] has rows, and so few that products read each weight once for all of them: on a
// CPU up to 16, on a GPU up to 8.
bool few_rows(const Tensor& x);

// Whether products of a row among `rows` and among `others` add in the same order on the CPU where
// nothing is recorded: the same numbers have the same bits. `codes`: weights are quantised ones.
bool sums_alike(DType type, bool codes, int64_t rows, int64_t others);

// y[..., N] = x[..., K] * w[N, K]^T + bias[N] for few rows. `bias` may be empty. y has the type of
// x, w and bias, or fp32.
void gemv(const OpContext& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y);

}  // namespace ds::ops
