// Checks and launch of Adam.
#include "ops/adam.h"

#include <cmath>

#include "kernels/optimizer/adam.h"
#include "ops/checks.h"

namespace ds::ops {

void adam(const OpContext& ctx, const AdamStep& step, Tensor& master, const Tensor& grad, Tensor& m,
          Tensor& v, Tensor& model) {
  const char* const op = "adam";
  check_dense(master, op, "master", DType::kFloat32);
  const int64_t n = master.elements();
  check_elements(grad, op, "grad", DType::kFloat32, n);
  check_elements(m, op, "m", DType::kFloat32, n);
  check_elements(v, op, "v", DType::kFloat32, n);
  if (model) check_elements(model, op, "model", DType::kBFloat16, n);
  const auto check_number = [&](const char* name, double value, bool good) {
    DS_CHECK(good && std::isfinite(value), Code::kInvalidArgument, op, ": ", name,
             " is out of range: ", value);
  };
  check_number("lr", step.lr, true);
  check_number("beta1", step.beta1, step.beta1 >= 0 && step.beta1 < 1);
  check_number("beta2", step.beta2, step.beta2 >= 0 && step.beta2 < 1);
  check_number("eps", step.eps, step.eps >= 0);
  check_number("weight_decay", step.weight_decay, true);
  check_number("grad_scale", step.grad_scale, true);
  DS_CHECK(step.step >= 1, Code::kInvalidArgument, op, ": steps count from 1, not ", step.step);

  kernels::AdamHyper hyper;
  hyper.lr = step.lr;
  hyper.beta1 = step.beta1;
  hyper.beta2 = step.beta2;
  hyper.eps = step.eps;
  hyper.weight_decay = step.weight_decay;
  hyper.decoupled = step.decoupled;
  hyper.bias_correction = step.bias_correction;
  hyper.step = step.step;
  hyper.grad_scale = step.grad_scale;
  kernels::adam(kernels::adam_constants(hyper), n, master.data<float>(), grad.data<float>(),
                m.data<float>(), v.data<float>(), model ? model.data<bfloat16>() : nullptr,
                *ctx.pool);
}

}  // namespace ds::ops
