// Reading and setting gradients by parameter, and what is computed of all of them: their norm, and
// the first one that is not finite.
#pragma once

#include "base/exact_sum.h"
#include "zero/gradients.h"

namespace ds::zero {

// As fp32 in the parameter's shape (every rank), and setting it, with one value. Of the caller's,
// what is not reduced yet is this rank's.
Tensor read_gradient(const OpContext& ctx, const Gradients& gradients, nn::ParamId id);
void write_gradient(const OpContext& ctx, Gradients& gradients, nn::ParamId id,
                    const Tensor& value);
// What this rank owns of one, flat: in its type, a view or, where it is not memory, a copy; as
// fp32; setting it; and multiplying it.
Tensor owned_gradient(const OpContext& ctx, const Gradients& gradients, nn::ParamId id);
void read_owned_gradient(const OpContext& ctx, const Gradients& gradients, nn::ParamId id,
                         Tensor& out);
void write_owned_gradient(const OpContext& ctx, Gradients& gradients, nn::ParamId id,
                          const Tensor& values);
void scale_owned_gradient(const OpContext& ctx, Gradients& gradients, nn::ParamId id, float factor);

// The sum of squares of all gradients (every rank).
ExactSum gradient_squares(const OpContext& ctx, const Gradients& gradients);

// The first element, as parameters were registered, of a gradient that is not finite; none with
// kNoParam (every rank).
struct BadGradient {
  nn::ParamId id = nn::kNoParam;
  int64_t element = -1;  // row-major in the parameter
  double value = 0;      // NaN or an infinity
};
BadGradient first_bad_gradient(const OpContext& ctx, const Gradients& gradients);

}  // namespace ds::zero
