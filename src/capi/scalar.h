// The value of one element of any type as a double.
#pragma once

#include "tensor/dtype.h"

namespace ds::capi {

double scalar_value(const void* element, DType dtype);

}  // namespace ds::capi
