// optimizer and the parameters of each optimizer type.
#include "config/config_table.h"

namespace ds {
namespace {

using namespace keys;

Key betas(const char* value) {
  Key item = any_number();
  item = std::move(item).at_least(0).below(1);
  return list("betas", std::move(item), value, "Decay rates of the first and second moment.")
      .items(2, 2);
}

Key lr(double value) {
  return number("lr", value, "Learning rate; a scheduler overrides it.").at_least(0);
}
Key eps(double value) { return number("eps", value, "Added to the denominator.").at_least(0); }
Key weight_decay(double value = 0.0) {
  return number("weight_decay", value, "Weight decay.").at_least(0);
}
Key bias_correction() {
  return flag("bias_correction", true, "Correct the moments for their start at zero.");
}
Key max_grad_norm() {
  return number("max_grad_norm", 0.0, "Must be 0: gradient_clipping is the key for clipping.");
}

using Rows = std::vector<Key>;

Rows operator+(Rows left, Rows right) {
  for (Key& key : right) left.push_back(std::move(key));
  return left;
}

Rows adam_rows() {
  return {
      lr(1e-3),
      betas("[0.9, 0.999]"),
      eps(1e-8),
      weight_decay(),
      bias_correction(),
      flag("amsgrad", false, "The AMSGrad variant.").needs("AMSGrad"),
      flag("torch_adam", false, "Use a framework's implementation.")
          .needs("a framework's optimizer (there is no framework here)"),
      flag("adam_w_mode", true,
           "Decoupled weight decay. False with type Adam: L2 regularisation. AdamW is decoupled "
           "whatever this says."),
      flag("fp32_optimizer_states", true, "Keep the moments in fp32.")
          .needs("moments in a lower precision"),
      max_grad_norm(),
  };
}

Rows onebit_rows() {
  return {
      lr(1e-3),
      betas("[0.9, 0.999]"),
      eps(1e-8),
      weight_decay(),
      bias_correction(),
      flag("amsgrad", false, "The AMSGrad variant.").needs("AMSGrad"),
      flag("cuda_aware", false, "The transport reads device memory."),
      choice("comm_backend_name", {"nccl", "mpi", "hccl", "compressed"}, "nccl", "Transport."),
      max_grad_norm(),
  };
}

Key freeze_step(const char* name) {
  return integer(name, 100000, "Step at which the variance is frozen.").at_least(0);
}

Rows lamb_coefficients() {
  return {
      number("max_coeff", 10.0, "Upper bound of the trust ratio.").above(0),
      number("min_coeff", 0.01, "Lower bound of the trust ratio.").at_least(0),
  };
}

Rows lamb_rows() {
  return Rows{lr(1e-3),          betas("[0.9, 0.999]"),
              eps(1e-8),         weight_decay(),
              bias_correction(), flag("eps_inside_sqrt", false, "Add eps under the square root."),
              max_grad_norm()} +
         lamb_coefficients();
}

Rows onebit_lamb_rows() {
  return onebit_rows() + lamb_coefficients() +
         Rows{
             freeze_step("freeze_step"),
             number("coeff_beta", 0.9, "Averaging of the frozen trust ratio.").at_least(0).below(1),
             number("factor_max", 4.0, "Upper bound of the ratio's factor.").above(0),
             number("factor_min", 0.5, "Lower bound of the ratio's factor.").at_least(0),
             number("factor_threshold", 0.1, "Bound of the factor's change per step.").at_least(0),
         };
}

Rows zero_one_rows() {
  return onebit_rows() +
         Rows{
             freeze_step("var_freeze_step"),
             integer("var_update_scaler", 16, "Variance updates before their interval doubles.")
                 .at_least(1),
             integer("local_step_scaler", 32678, "Steps before the local interval doubles.")
                 .at_least(1),
             integer("local_step_clipper", 16, "Upper bound of the local interval.").at_least(1),
         };
}

Rows lion_rows() { return {lr(1e-3), betas("[0.9, 0.999]"), weight_decay(), max_grad_norm()}; }

Rows adagrad_rows() { return {lr(1e-2), eps(1e-10), weight_decay(), max_grad_norm()}; }

Rows muon_rows() {
  return {
      lr(0.02),
      number("muon_lr", std::nullopt, "Learning rate of matrices; overrides lr.").at_least(0),
      number("adam_lr", std::nullopt, "Learning rate of the rest (3e-4 when unset).").at_least(0),
      number("momentum", 0.95, "Momentum of matrices.").at_least(0).below(1),
      choice("ns_method", {"gram", "standard"}, "gram", "Orthogonalisation."),
      betas("[0.9, 0.95]"),
      eps(1e-10),
      weight_decay(),
      max_grad_norm(),
  };
}

Rows sgd_rows() {
  return {
      lr(1e-3),
      number("momentum", 0.0, "Momentum.").at_least(0),
      number("dampening", 0.0, "Dampening of the momentum."),
      flag("nesterov", false, "Nesterov's variant."),
      weight_decay(),
      max_grad_norm(),
  };
}

}  // namespace

KeyTable optimizer_table() {
  return table(
      "The optimizer. Types are matched in any case.",
      {
          choice("type",
                 {"Adam", "AdamW", "Lamb", "OneBitAdam", "ZeroOneAdam", "OneBitLamb", "Lion",
                  "Adagrad", "Muon", "MuAdam", "MuAdamW", "MuSGD", "SGD"},
                 std::nullopt, "Optimizer.")
              .in_any_case()
              .must_be_given()
              .needs("an optimizer other than Adam and AdamW", {"Adam", "AdamW"}),
          section_by(
              "params", "type",
              {
                  {"Adam", table("", adam_rows())},
                  {"AdamW", table("", adam_rows())},
                  {"Lamb", table("", lamb_rows())},
                  {"OneBitAdam", table("", onebit_rows() + Rows{freeze_step("freeze_step")})},
                  {"ZeroOneAdam", table("", zero_one_rows())},
                  {"OneBitLamb", table("", onebit_lamb_rows())},
                  {"Lion", table("", lion_rows())},
                  {"Adagrad", table("", adagrad_rows())},
                  {"Muon", table("", muon_rows())},
                  {"MuAdam", table("", adam_rows())},
                  {"MuAdamW", table("", adam_rows())},
                  {"MuSGD", table("", sgd_rows())},
                  {"SGD", table("", sgd_rows())},
              },
              "Parameters of the type."),
          flag("legacy_fusion", false, "The old fused path.").needs("the legacy fused path"),
      });
}

}  // namespace ds
