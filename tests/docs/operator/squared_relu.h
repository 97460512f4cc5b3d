// What src/ops/squared_relu.h of docs/add-an-operator.md, step 4, declares.
#pragma once

#include "ops/context.h"

namespace ds::ops {

void squared_relu(const OpContext& ctx, const Tensor& x, Tensor& y);
void squared_relu_backward(const OpContext& ctx, const Tensor& x, const Tensor& dy, Tensor& dx);

}  // namespace ds::ops
