// The one table of operator test cases. A row serves three programs: the correctness test (against
// a double-precision reference, fresh random inputs), the gradient test (finite differences of the
// reference in double) and the benchmark (bytes and FLOP counted).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/context.h"

namespace ds::testing {

// Worst deviation divided by what the row allows: above 1 fails. `where` locates it.
struct CaseResult {
  double worst = 0;
  std::string where;
  void merge(double ratio, const std::string& place) {
    if (!(ratio <= worst)) {  // NaN counts as worst
      worst = ratio;
      where = place;
    }
  }
};

struct OpCase {
  std::string name;  // "layer_norm/bf16/33x129"
  // Runs the operator, forward and backward, and compares with the double-precision reference.
  std::function<CaseResult(const OpContext&, uint64_t seed)> check;
  // Compares the operator's backward with central differences of the reference; empty where the
  // operator has no gradient. Rows with small shapes carry it.
  std::function<CaseResult(const OpContext&, uint64_t seed)> gradient;
  // Prepares inputs and returns the body to time; empty where a size is not worth timing.
  std::function<std::function<void()>(const OpContext&)> prepare;
  double flops = 0;     // per call of the body
  double bytes = 0;     // least traffic per call of the body
  bool on_gpus = true;  // false: the operator refuses GPUs, though its family does not
};

}  // namespace ds::testing
