// Linked with nccl_on.cc, a program's groups of GPUs go over the stand-in of NCCL.
#pragma once

#include "cuda/emulation/stand_in.h"
#include "cuda/nccl/stand_in_nccl.h"
#include "cuda/stand_ins.h"

namespace ds::testing {

// Its own control, of the library that a group opens.
const NcclControl& nccl_control();

}  // namespace ds::testing
