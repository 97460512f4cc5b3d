#include "ops/update_gate.h"

#include "base/exact_sum.h"
#include "ops/checks.h"

namespace ds::ops {

Tensor update_gate(const OpContext& ctx, const Tensor& squares, const kernels::GateRule& rule) {
  const Op op{ctx, "update_gate"};
  check_elements(squares, op, "squares", DType::kInt64, ExactSum::kWords);
  DS_CHECK(rule.loss_scale > 0, Code::kInvalidArgument, op, ": the loss scale is ",
           rule.loss_scale);
  Tensor gate = ctx.workspace(DType::kUInt8, {int64_t{sizeof(kernels::UpdateGate)}});
  run(ctx, [&](auto& on) {
    kernels::update_gate(squares.data<int64_t>(), rule,
                         static_cast<kernels::UpdateGate*>(gate.raw()), on);
  });
  return gate;
}

}  // namespace ds::ops
