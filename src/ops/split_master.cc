// Checks and launch of splitting and joining masters.
#include "ops/split_master.h"

#include "kernels/optimizer/split_master.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

void check(const Op& op, const Tensor& masters, const Tensor& weights, const Tensor& low) {
  check_dense(masters, op, "masters", DType::kFloat32);
  check_elements(weights, op, "weights", DType::kBFloat16, masters.elements());
  check_elements(low, op, "low", DType::kUInt16, masters.elements());
}

}  // namespace

void split_masters(const OpContext& ctx, const Tensor& masters, Tensor& weights, Tensor& low) {
  check(Op{ctx, "split_masters"}, masters, weights, low);
  run(ctx, [&](auto& on) {
    kernels::split_masters(masters.elements(), masters.data<float>(), weights.data<bfloat16>(),
                           low.data<uint16_t>(), on);
  });
}

void join_masters(const OpContext& ctx, const Tensor& weights, const Tensor& low, Tensor& masters) {
  check(Op{ctx, "join_masters"}, masters, weights, low);
  run(ctx, [&](auto& on) {
    kernels::join_masters(masters.elements(), weights.data<bfloat16>(), low.data<uint16_t>(),
                          masters.data<float>(), on);
  });
}

}  // namespace ds::ops
