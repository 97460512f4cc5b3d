// The families of operator cases that are linked into a program: a test program links one, the
// benchmark all of them.
#pragma once

#include <vector>

#include "kernels/op_case.h"

namespace ds::testing {

struct CaseFamily {
  const char* name;
  std::vector<OpCase> (*cases)();
};

std::vector<CaseFamily> all_case_families();

}  // namespace ds::testing
