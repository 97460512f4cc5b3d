// The families of operator cases that a program has (case_families.h).
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
