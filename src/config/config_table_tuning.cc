// elasticity, autotuning, memory_plan, eigenvalue (quantize_training), progressive_layer_drop.
#include "config/config_table.h"

namespace ds {

using namespace keys;

KeyTable elasticity_table() {
  Key micro = any_integer();
  micro = std::move(micro).at_least(1);
  return table(
             "Batch sizes that many numbers of GPUs can train with. Excludes explicit batch sizes.",
             {
                 flag("enabled", false, "Turns it on.").needs("elastic training"),
                 integer("max_train_batch_size", std::nullopt, "Upper bound of the batch.")
                     .at_least(1)
                     .must_be_given_when_on(),
                 list("micro_batch_sizes", std::move(micro), "null",
                      "Micro batches to choose from.")
                     .items(1, 4096)
                     .must_be_given_when_on(),
                 integer("min_gpus", 1, "Fewest GPUs.").at_least(1),
                 integer("max_gpus", 10000, "Most GPUs.").at_least(1),
                 integer("min_time", 0, "Minutes before a change.").at_least(0),
                 flag("prefer_larger_batch", true, "Break ties towards the larger batch."),
                 flag("ignore_non_elastic_batch_info", false,
                      "Explicit batch sizes are overruled instead of refused."),
                 integer("num_gpus_per_node", 1, "GPUs per node.").at_least(1),
                 integer("model_parallel_size", 1,
                         "Model-parallel size; above 1 needs version 0.2.")
                     .at_least(1),
                 number("version", 0.2, "Version of the rules.").at_least(0.1).at_most(0.2),
             })
      .gated_by("enabled")
      .ignores_other_keys();
}

KeyTable autotuning_table() {
  constexpr const char* kOff = "Turns it on.";
  return table("Search for fast settings.",
               {
                   flag("enabled", false, kOff).needs("autotuning"),
                   flag("fast", true, "Tune only micro batches and stages."),
                   text("results_dir", "autotuning_results", "Folder of results."),
                   text("exps_dir", "autotuning_exps", "Folder of experiments."),
                   flag("overwrite", true, "Run experiments again."),
                   integer("start_profile_step", 3, "First measured step.").at_least(0),
                   integer("end_profile_step", 5, "Last measured step.").at_least(0),
                   choice("metric", {"throughput", "latency", "flops"}, "throughput", "Goal."),
                   text("metric_path", std::nullopt, "File of the measured metric."),
                   choice("tuner_type", {"gridsearch", "random", "model_based"}, "gridsearch",
                          "Order of experiments."),
                   integer("tuner_early_stopping", 5, "Experiments without gain before the end.")
                       .at_least(1),
                   integer("tuner_num_trials", 50, "Most experiments.").at_least(1),
                   anything("arg_mappings", "Program arguments that follow keys."),
                   integer("mp_size", 1, "Model-parallel size.").at_least(1),
                   integer("max_train_batch_size", std::nullopt, "Largest batch.").at_least(1),
                   integer("min_train_batch_size", 1, "Smallest batch.").at_least(1),
                   integer("max_train_micro_batch_size_per_gpu", 1024, "Largest micro batch.")
                       .at_least(1),
                   integer("min_train_micro_batch_size_per_gpu", 1, "Smallest micro batch.")
                       .at_least(1),
                   integer("num_tuning_micro_batch_sizes", 3, "Micro batches tried.").at_least(1),
                   optional_section(
                       "model_info",
                       table("What is known of the model.",
                             {
                                 flag("profile", false, "Measure it."),
                                 integer("num_params", std::nullopt, "Parameters.").at_least(0),
                                 integer("hidden_size", std::nullopt, "Width.").at_least(1),
                                 integer("num_layers", std::nullopt, "Layers.").at_least(1),
                             })),
                   text("model_info_path", std::nullopt, "File of model_info."),
               })
      .gated_by("enabled")
      .ignores_other_keys();
}

namespace {

// A budget of a rank in bytes.
Key budget(const char* name, const char* what,
           std::optional<int64_t> MemoryPlanConfig::Budgets::*field) {
  return integer(name, std::nullopt, what).at_least(0).to(field);
}

}  // namespace

KeyTable memory_plan_table() {
  using Check = MemoryPlanConfig::Check;
  using Budgets = MemoryPlanConfig::Budgets;
  KeyTable budgets = table(
      "Bytes that a rank may have for a use of memory; a plan that needs more is treated as one "
      "that does not fit.",
      {
          budget("parameters", "Weights, and masters beside them.", &Budgets::parameters),
          budget("gradients", "Gradients.", &Budgets::gradients),
          budget("optimizer", "Moments.", &Budgets::optimizer),
          budget("activations", "Activations and work space.", &Budgets::activations),
          budget("communication", "Gathered weights, and gradients on their way.",
                 &Budgets::communication),
          budget("io", "Memory between passes and files.", &Budgets::io),
          budget("files", "State in files.", &Budgets::files),
      });
  return table(
      "Before an engine allocates anything, what `ds plan` counts is compared with what there is: "
      "memory and swap of the machine, limits of control groups and of the process, memory of the "
      "GPU, room on the disks of nvme_path. (Extension.)",
      {
          choice("check", {"refuse", "warn", "off"}, "refuse",
                 "What cannot fit is refused, with a table and what would help. warn: it is tried "
                 "all the same; off: nothing is planned.")
              .chooses(std::vector{Check::kRefuse, Check::kWarn, Check::kOff},
                       &MemoryPlanConfig::check),
          integer("sequence_length", std::nullopt,
                  "Tokens of a sample, for activations. null: only what is needed whatever it is "
                  "can be refused; what samples of full length would need is a warning.")
              .at_least(1)
              .to(&MemoryPlanConfig::sequence_length),
          integer("limit_bytes", std::nullopt,
                  "Host memory that a rank may have, where that is less than there is.")
              .at_least(1)
              .to(&MemoryPlanConfig::limit_bytes),
          section("budgets", std::move(budgets)).to(&MemoryPlanConfig::budgets),
      });
}

KeyTable eigenvalue_table() {
  return table(
      "Curvature for mixture-of-quantisation training.",
      {section(
          "eigenvalue",
          table("Power iteration per layer.",
                {
                    flag("enabled", false, "Turns it on.").needs("eigenvalue estimation"),
                    flag("verbose", false, "Log the iterations."),
                    integer("max_iter", 100, "Most iterations.").at_least(1),
                    number("tol", 1e-2, "Relative change that ends the iteration.").above(0),
                    number("stability", 1e-6, "Added to norms.").at_least(0),
                    integer("gas_boundary_resolution", 1, "Steps between estimates.").at_least(1),
                    text("layer_name", "bert.encoder.layer", "Prefix of the layers."),
                    integer("layer_num", 0, "Number of layers.").at_least(0),
                })
              .gated_by("enabled"))});
}

KeyTable progressive_layer_drop_table() {
  return table("Random omission of layers: keep probability (1 - theta) exp(-gamma t) + theta.",
               {
                   flag("enabled", false, "Turns it on.").needs("progressive layer drop"),
                   number("theta", 1.0, "Final keep probability.").at_least(0).at_most(1),
                   number("gamma", 0.001, "Speed.").at_least(0),
               })
      .gated_by("enabled")
      .ignores_other_keys();
}

}  // namespace ds
