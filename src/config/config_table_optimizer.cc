// optimizer and the parameters of each optimizer type.
#include "config/config_table.h"
#include "config/optimizer_types.h"

namespace ds {
namespace {

using namespace keys;

Key betas(const char* value) {
  Key item = any_number();
  item = std::move(item).at_least(0).below(1);
  return list("betas", std::move(item), value, "Decay rates of the first and second moment.")
      .items(2, 2)
      .items_to(&OptimizerConfig::beta1, &OptimizerConfig::beta2);
}

Key lr(double value) {
  return number("lr", value, "Learning rate; a scheduler overrides it.")
      .at_least(0)
      .to(&OptimizerConfig::lr);
}
Key eps(double value) {
  return number("eps", value, "Added to the denominator.").at_least(0).to(&OptimizerConfig::eps);
}
Key weight_decay(double value = 0.0) {
  return number("weight_decay", value, "Weight decay.")
      .at_least(0)
      .to(&OptimizerConfig::weight_decay);
}
Key amsgrad(const char* description) {
  return flag("amsgrad", false, description).to(&OptimizerConfig::amsgrad);
}
Key momentum(double value, const char* description) {
  return number("momentum", value, description).at_least(0).to(&OptimizerConfig::momentum);
}
Key bias_correction() {
  return flag("bias_correction", true, "Correct the moments for their start at zero.")
      .to(&OptimizerConfig::bias_correction);
}
Key max_grad_norm() {
  return number("max_grad_norm", 0.0, "Must be 0: gradient_clipping is the key for clipping.")
      .rather("/gradient_clipping");
}

using Rows = std::vector<Key>;

Rows operator+(Rows left, Rows right) {
  for (Key& key : right) left.push_back(std::move(key));
  return left;
}

Key base_shapes() {
  Key size = integer("size", std::nullopt, "");
  size = std::move(size).at_least(1);
  Key item = any_text();
  item.types = kObject;
  item.table = std::make_shared<const KeyTable>(table(
      "",
      Rows{
          list("match", any_text(), "[]", "Patterns.").or_one_string().to(&BaseShapeConfig::match),
          list("shape", std::move(size), "[]", "Sizes.").items(1, 8).to(&BaseShapeConfig::shape),
      }));
  return list("base_shapes", std::move(item), "[]",
              "Shapes in the base model, whose rates these are: objects with `match` (a list of "
              "patterns of parameter names) and `shape` (its sizes; null, or the parameter's own "
              "size, where a dimension is no width). The first that matches counts; a parameter "
              "without one keeps its rate. Only rates and weight decay are scaled, as mup's "
              "optimizers do: initial weights and the factors of outputs and attention are the "
              "model's. (Extension.)")
      .to(&OptimizerConfig::base_shapes);
}

Rows adam_rows() {
  return {
      lr(1e-3),
      betas("[0.9, 0.999]"),
      eps(1e-8),
      weight_decay(),
      bias_correction(),
      amsgrad("The AMSGrad variant: the largest second moment so far divides (in DeepSpeed with "
              "torch_adam only)."),
      flag("torch_adam", false,
           "Use PyTorch's implementation. There is one here, which computes the same; but with "
           "decoupled weight decay the default of weight_decay is PyTorch's then, 0.01."),
      flag("set_grad_none", true, "Free gradients instead of clearing them; changes no number."),
      flag("foreach", std::nullopt, "Update several tensors at once; changes no number."),
      flag("adam_w_mode", true,
           "Decoupled weight decay. False with type Adam: L2 regularisation. AdamW is decoupled "
           "whatever this says."),
      flag("fp32_optimizer_states", true,
           "Keep the moments in fp32. False is state_dtype \"bf16\"."),
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

// Parameters of torch.optim.Adam and AdamW, which mup's optimizers are made of.
Rows mu_adam_rows() {
  return {
      lr(1e-3),
      betas("[0.9, 0.999]"),
      eps(1e-8),
      weight_decay(),
      amsgrad("The AMSGrad variant."),
      flag("fp32_optimizer_states", true,
           "Keep the moments in fp32. False is state_dtype \"bf16\"."),
      max_grad_norm(),
      base_shapes(),
  };
}

Rows nadam_rows() {
  return {
      lr(2e-3),
      betas("[0.9, 0.999]"),
      eps(1e-8),
      weight_decay(),
      number("momentum_decay", 4e-3, "How fast the momentum nears its full value.")
          .at_least(0)
          .to(&OptimizerConfig::momentum_decay),
      flag("decoupled_weight_decay", false, "Decoupled weight decay, else L2 regularisation."),
      max_grad_norm(),
  };
}

Rows rmsprop_rows() {
  return {
      lr(1e-2),
      number("alpha", 0.99, "Decay rate of the mean square.")
          .at_least(0)
          .below(1)
          .to(&OptimizerConfig::beta2),
      eps(1e-8),
      weight_decay(),
      momentum(0.0, "Momentum."),
      flag("centered", false, "Divide by the standard deviation of gradients.")
          .to(&OptimizerConfig::centered),
      max_grad_norm(),
  };
}

Key freeze_step(const char* name) {
  return integer(name, 100000, "Step at which the variance is frozen.").at_least(0);
}

Rows lamb_coefficients() {
  return {
      number("max_coeff", 10.0, "Upper bound of the trust ratio.")
          .above(0)
          .to(&OptimizerConfig::max_coeff),
      number("min_coeff", 0.01, "Lower bound of the trust ratio.")
          .at_least(0)
          .to(&OptimizerConfig::min_coeff),
  };
}

Rows lamb_rows() {
  return Rows{lr(1e-3),
              betas("[0.9, 0.999]"),
              eps(1e-8),
              weight_decay(),
              bias_correction(),
              flag("eps_inside_sqrt", false, "Add eps under the square root.")
                  .to(&OptimizerConfig::eps_inside_sqrt),
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

Rows adagrad_rows() {
  return {
      lr(1e-2),
      number("lr_decay", 0.0, "Step t divides the rate by 1 + (t - 1) times this.")
          .at_least(0)
          .to(&OptimizerConfig::lr_decay),
      number("initial_accumulator_value", 0.0, "What sums begin with.")
          .at_least(0)
          .to(&OptimizerConfig::initial_accumulator_value),
      eps(1e-10),
      weight_decay(),
      max_grad_norm(),
  };
}

Rows muon_rows() {
  return {
      lr(0.02),
      number("muon_lr", std::nullopt, "Learning rate of matrices; overrides lr.").at_least(0),
      number("adam_lr", std::nullopt,
             "Learning rate of the rest, which Adam updates. Unset: lr when that is given, else "
             "3e-4.")
          .at_least(0),
      momentum(0.95, "Momentum of matrices.").below(1),
      choice("ns_method", {"gram", "standard"}, "gram",
             "Form of the Newton-Schulz iteration. Both work in fp32 here.")
          .chooses(std::vector{MuonMethod::kGram, MuonMethod::kStandard},
                   &OptimizerConfig::ns_method),
      betas("[0.9, 0.95]"),
      eps(1e-10),
      weight_decay(),
      max_grad_norm(),
  };
}

Rows sgd_rows() {
  return {
      lr(1e-3),
      momentum(0.0, "Momentum."),
      number("dampening", 0.0, "Dampening of the momentum.").to(&OptimizerConfig::dampening),
      flag("nesterov", false, "Nesterov's variant.").to(&OptimizerConfig::nesterov),
      weight_decay(),
      max_grad_norm(),
  };
}

Key group_betas() {
  Key item = any_number();
  item = std::move(item).at_least(0).below(1);
  return list("betas", std::move(item), "null", "Decay rates.")
      .items(2, 2)
      .items_to(&OptimizerGroupConfig::beta1, &OptimizerGroupConfig::beta2);
}

Key group_number(const char* name, std::optional<double> OptimizerGroupConfig::*field,
                 const char* description) {
  return number(name, std::nullopt, description).at_least(0).to(field);
}

// Hyperparameters that a group may have of its own; rules.cc checks that the type has them too.
Key param_groups() {
  Key item = any_text();
  item.types = kObject;
  item.table = std::make_shared<const KeyTable>(table(
      "", Rows{
              text("name", std::nullopt, "Name; parameters can ask for it.")
                  .must_be_given()
                  .to(&OptimizerGroupConfig::name),
              list("match", any_text(), "[]", "Patterns.")
                  .or_one_string()
                  .to(&OptimizerGroupConfig::match),
              group_number("lr", &OptimizerGroupConfig::lr, "Learning rate."),
              group_number("weight_decay", &OptimizerGroupConfig::weight_decay,
                           "Weight decay, of all parameters of the group."),
              group_betas(),
              group_number("eps", &OptimizerGroupConfig::eps, "Added to the denominator."),
              group_number("momentum", &OptimizerGroupConfig::momentum, "Momentum."),
              group_number("muon_lr", &OptimizerGroupConfig::muon_lr, "Muon: rate of matrices."),
              group_number("adam_lr", &OptimizerGroupConfig::adam_lr, "Muon: rate of the rest."),
          }));
  return list("param_groups", std::move(item), "[]",
              "Parameters with hyperparameters of their own: objects with `name`, `match` (a list "
              "of patterns of parameter names, * for any text and ? for one character) and any of "
              "`lr`, `weight_decay`, `betas`, `eps`, `momentum`, `muon_lr`, `adam_lr` that the "
              "type has. The first group that matches takes a parameter, unless the program named "
              "its group; the others use params. A scheduler applies to each group's rate. "
              "(Extension.)")
      .to(&OptimizerConfig::param_groups);
}

}  // namespace

KeyTable decay_schedule_table() {
  return table(
      "Weight decay that moves with the steps of schedules, as Megatron's weight-decay-incr-style: "
      "in place of params' weight_decay, for groups without one of their own.",
      Rows{
          choice("type", {"linear", "cosine"}, "linear", "Its way from start to end.")
              .chooses(std::vector{DecayShape::kLinear, DecayShape::kCosine},
                       &DecayScheduleConfig::type),
          number("start", 0.0, "Weight decay of the first step.")
              .at_least(0)
              .to(&DecayScheduleConfig::start),
          number("end", std::nullopt, "From total_num_steps on.")
              .must_be_given()
              .at_least(0)
              .to(&DecayScheduleConfig::end),
          integer("total_num_steps", std::nullopt, "Applied steps that it takes.")
              .must_be_given()
              .at_least(1)
              .to(&DecayScheduleConfig::total_num_steps),
      });
}

namespace {

std::vector<Json> known_names() {
  std::vector<Json> names;
  for (const KnownOptimizer& known : kOptimizers) names.emplace_back(known.name);
  return names;
}

// Parameters by type.
std::vector<std::pair<std::string, KeyTable>> params_tables() {
  constexpr const char* kSgd = "The first gradient fills the momentum buffer undamped.";
  // Names of PyTorch's: their parameters are kept unread, and the type is refused.
  const auto foreign = [] { return table("", {}).accepts_other_keys(); };
  constexpr const char* kMu =
      "Rates for a model of another width than the base model's (mup). A dimension is a width "
      "where base_shapes has another size. ";
  const std::string mu_adam = str_cat(
      kMu,
      "Parameters with two widths: lr is divided, and weight_decay multiplied, by the size of "
      "the last one over its base size.");
  const std::string mu_sgd = str_cat(
      kMu,
      "With one width: lr is multiplied, and weight_decay divided, by its size over its base "
      "size. With two: lr is divided, and weight_decay multiplied, by that quotient of the "
      "second dimension over that of the first. ",
      kSgd);
  return {
      {"Adam", table("", adam_rows())},
      {"AdamW", table("", adam_rows())},
      {"Lamb", table("Each tensor's step is scaled by its trust ratio, the norm of the "
                     "weights over "
                     "the norm of the update.",
                     lamb_rows())},
      {"OneBitAdam", table("", onebit_rows() + Rows{freeze_step("freeze_step")})},
      {"ZeroOneAdam", table("", zero_one_rows())},
      {"OneBitLamb", table("", onebit_lamb_rows())},
      {"Lion", table("The sign of zero is zero: such an element moves by weight "
                     "decay only.",
                     lion_rows())},
      {"Adagrad",
       table("Weight decay is L2 regularisation, added to the gradient.", adagrad_rows())},
      {"Muon", table("Matrices move along their orthogonalised momentum; Adam updates the "
                     "rest. A matrix is a parameter of two or more dimensions whose "
                     "name holds neither `embed` nor `lm_head`; three dimensions are a "
                     "stack of matrices, more are first x rest. lr, weight_decay and "
                     "a group's lr apply to both kinds.",
                     muon_rows())},
      {"MuAdam", table((mu_adam + " Weight decay is L2 regularisation.").c_str(), mu_adam_rows())},
      {"MuAdamW", table((mu_adam + " Weight decay is decoupled.").c_str(), mu_adam_rows())},
      {"MuSGD", table(mu_sgd.c_str(), sgd_rows() + Rows{base_shapes()})},
      {"SGD", table(kSgd, sgd_rows())},
      {"Adadelta", foreign()},
      {"Adafactor", foreign()},
      {"Adamax", foreign()},
      {"ASGD", foreign()},
      {"LBFGS", foreign()},
      {"RAdam", foreign()},
      {"Rprop", foreign()},
      {"SparseAdam", foreign()},
      {"NAdam", table("As torch.optim.NAdam. Weight decay is L2 regularisation unless "
                      "decoupled_weight_decay.",
                      nadam_rows())},
      {"RMSprop",
       table("As torch.optim.RMSprop. Weight decay is L2 regularisation.", rmsprop_rows())},
  };
}

}  // namespace

KeyTable optimizer_table() {
  return table(
             "The optimizer. Types are matched in any case.",
             {
                 choice("type",
                        {"Adam", "AdamW",   "Lamb",    "OneBitAdam", "ZeroOneAdam", "OneBitLamb",
                         "Lion", "Adagrad", "Muon",    "MuAdam",     "MuAdamW",     "MuSGD",
                         "SGD",  "NAdam",   "RMSprop", "Adadelta",   "Adafactor",   "Adamax",
                         "ASGD", "LBFGS",   "RAdam",   "Rprop",      "SparseAdam"},
                        std::nullopt, "Optimizer.")
                     .in_any_case()
                     .must_be_given()
                     .needs("compressed or other PyTorch optimizers", known_names()),
                 section_by("params", "type", params_tables(), "Parameters of the type."),
                 choice("state_dtype", {"fp32|float32|float", "bf16|bfloat16", "int8"},
                        std::nullopt,
                        "Type of the moments: null is fp32, or bf16 when fp32_optimizer_states or "
                        "bf16_optimizer_states ask for it. int8 is block-wise dynamic quantisation "
                        "with "
                        "an fp32 scale per 256 elements. Arithmetic is fp32 in every case. "
                        "(Extension.)")
                     .chooses(std::vector{OptimizerStateType::kFp32, OptimizerStateType::kBf16,
                                          OptimizerStateType::kInt8},
                              &OptimizerConfig::state_dtype),
                 param_groups(),
                 flag(
                     "decay_all", false,
                     "Weight decay for all parameters, as in DeepSpeed, which decays all that it "
                     "is "
                     "given. False: params' weight_decay leaves out the norms and biases of "
                     "built-in "
                     "models (their parameters of one dimension) and what a program added without "
                     "decay; a group's own weight_decay holds for all of the group in either case. "
                     "(Extension.)")
                     .to(&OptimizerConfig::decay_all),
                 optional_section("weight_decay_schedule", decay_schedule_table())
                     .to(&OptimizerConfig::weight_decay_schedule),
                 flag("legacy_fusion", false, "The old fused path.").needs("the legacy fused path"),
             })
      .ignores_other_keys();
}

}  // namespace ds
