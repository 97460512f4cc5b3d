#include "kernels/optimizer/update_gate.h"

#include <algorithm>
#include <cmath>

#include "base/exact_sum.h"

namespace ds::kernels {

void update_gate(const int64_t* squares, const GateRule& rule, UpdateGate* gate, ThreadPool&) {
  ExactSum sum;
  std::copy_n(squares, ExactSum::kWords, sum.words().begin());
  *gate = decide_update(std::sqrt(sum.value()), rule);
}

}  // namespace ds::kernels
