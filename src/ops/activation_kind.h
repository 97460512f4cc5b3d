// Which kernel an activation of the operators is.
#pragma once

#include "kernels/activation/activation.h"
#include "ops/activation.h"
#include "ops/checks.h"

namespace ds::ops {

inline kernels::ActivationKind kind_of(Activation kind, const Op& op) {
  switch (kind) {
    case Activation::kRelu:
      return kernels::ActivationKind::kRelu;
    case Activation::kSilu:
      return kernels::ActivationKind::kSilu;
    case Activation::kGeluTanh:
      return kernels::ActivationKind::kGeluTanh;
    case Activation::kGeluErf:
      return kernels::ActivationKind::kGeluErf;
    case Activation::kTanh:
      return kernels::ActivationKind::kTanh;
  }
  fail(Code::kInvalidArgument, op, ": no activation has number ", static_cast<int>(kind));
}

}  // namespace ds::ops
