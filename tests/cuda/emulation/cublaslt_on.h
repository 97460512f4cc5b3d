// Linked with cublaslt_on.cc, a program multiplies with the stand-in of cuBLASLt.
#pragma once

#include "cuda/emulation/cublaslt_stand_in.h"

namespace ds::testing {

CublasLtStandIn& cublaslt();

}  // namespace ds::testing
