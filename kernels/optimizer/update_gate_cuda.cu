// The gate of an update on a GPU: one thread, in double, with the bits of the host.
#include "kernels/cuda/exact_sum.cuh"
#include "kernels/optimizer/update_gate.h"

namespace ds::kernels {
namespace {

using namespace cuda;

__global__ void find_gate(const int64_t* squares, GateRule rule, UpdateGate* gate) {
  *gate = decide_update(sqrt(exact_value(squares)), rule);
}

}  // namespace

void update_gate(const int64_t* squares, const GateRule& rule, UpdateGate* gate,
                 const GpuStream& on) {
  launch(on, "update_gate", &find_gate, {1, 1}, squares, rule, gate);
}

}  // namespace ds::kernels
