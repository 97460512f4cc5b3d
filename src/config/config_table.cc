// The top level of the document: batch sizes, scalars, and the list of sections.
#include "config/config_table.h"

namespace ds {
namespace {

using namespace keys;

std::vector<Key> batch_rows() {
  return {
      integer("train_batch_size", std::nullopt,
              "Samples per optimizer step over all ranks. Of this key and the next two, any two "
              "(or one of the first two) determine the rest; see Batch sizes.")
          .at_least(1),
      integer("train_micro_batch_size_per_gpu", std::nullopt,
              "Samples per forward and backward pass on one rank.")
          .at_least(1),
      integer("gradient_accumulation_steps", std::nullopt,
              "Forward and backward passes per optimizer step.")
          .at_least(1),
      list("rampup_batch_size", any_integer().at_least(1), "null",
           "Megatron's --rampup-batch-size: [START, INCREMENT, SAMPLES]. The first step has START "
           "samples; train_batch_size is reached after SAMPLES samples, by INCREMENT at a time, by "
           "more micro batches per step. (Extension.)")
          .items(3, 3),
      flag("managed_gradient_accumulation", true,
           "The engine counts micro batches and updates at the boundary, and divides by "
           "gradient_accumulation_steps. False: every step() is a boundary, forward and backward "
           "may come several times before it, and nothing is divided.")
          .to(&Config::managed_gradient_accumulation),
  };
}

std::vector<Key> engine_rows() {
  return {
      integer("seed", 1234, "Seed of every random stream of the engine. (Extension.)")
          .at_least(0)
          .to(&Config::seed),
      integer("threads", 0,
              "CPU threads of the engine; 0 means the CPUs that the process may use. (Extension.)")
          .at_least(0)
          .at_most(4096)
          .to(&Config::threads),
      list("thread_affinity", any_integer().at_least(0).at_most(1023), "[]",
           "CPUs that the engine's worker threads may run on; empty allows all of the process's. "
           "The calling thread is never moved. Engines with the same list share their workers. "
           "(Extension.)")
          .without_repeats()
          .to(&Config::thread_affinity),
      integer("steps_per_print", std::nullopt,
              "Log a progress line every so many optimizer steps; null and 0 never do.")
          .at_least(0)
          .to(&Config::steps_per_print),
      flag("dump_state", false, "Log the resolved configuration when the engine is made.")
          .to(&Config::dump_state),
      number("gradient_clipping", 1.0,
             "Upper bound of the global L2 gradient norm; 0 and null disable.")
          .or_null()
          .at_least(0)
          .to(&Config::gradient_clipping),
      number("gradient_skip_norm", 0.0,
             "Skip a step whose global L2 gradient norm, before clipping, is above this, as one "
             "with an infinity or NaN is; 0 never does. The loss scale takes no notice. "
             "(Extension.)")
          .at_least(0)
          .to(&Config::gradient_skip_norm),
      integer("max_consecutive_skips", 100,
              "Steps skipped in a row that end training with an error; 0 never does. "
              "(Extension.)")
          .at_least(0)
          .to(&Config::max_consecutive_skips),
      integer("eval_micro_batch_size_per_gpu", std::nullopt,
              "Samples of one forward pass of an evaluation; null: those of training. (Extension.)")
          .at_least(1)
          .to(&Config::eval_micro_batch_size_per_gpu),
      flag("dataloader_drop_last", false,
           "Drop the last samples of an epoch that do not fill a batch.")
          .to(&Config::dataloader_drop_last),
      choice("dataloader_type", {"passes", "single", "cyclic"}, "passes",
             "How ds_engine_train_batch goes through a data set. passes: in its order, then again "
             "and again, each time in a new order. single: once, in its order, as Megatron's "
             "--dataloader-type single. cyclic: in a new order from the first pass on, as its "
             "cyclic. (Extension.)")
          .to(&Config::dataloader_type),
      flag("data_sharding", true,
           "With dataloader_type cyclic: each rank goes through a range of its own; false: ranks "
           "take turns in one order, as Megatron's --no-data-sharding. (Extension.)")
          .to(&Config::data_sharding),
      flag("wall_clock_breakdown", false,
           "Measure forward, backward and step separately. On when flops_profiler is enabled.")
          .to(&Config::wall_clock_breakdown),
      flag("memory_breakdown", false, "Log memory by tag at every printed step.")
          .to(&Config::memory_breakdown),
      integer("vocabulary_size", std::nullopt,
              "Only checked: a size that is no multiple of 8 gives a warning.")
          .at_least(1),
      choice("log_level", {"debug", "info", "warning", "error", "critical"}, std::nullopt,
             "Log threshold.")
          .in_any_case()
          .needs("a log level per engine (set it on the process's log sink)"),
  };
}

std::vector<Key> communication_rows() {
  return {
      choice("communication_data_type",
             {"fp32|float32|float|torch.float32", "fp16|float16|half|torch.float16",
              "bf16|bfloat16|torch.bfloat16"},
             std::nullopt,
             "Type in which gradients are reduced; null follows the training precision.")
          .in_any_case()
          .chooses(std::vector{Precision::kFp32, Precision::kFp16, Precision::kBf16},
                   &Config::precision, &PrecisionConfig::communication_data_type),
      choice("seq_parallel_communication_data_type",
             {"fp32|float32|float|torch.float32", "fp16|float16|half|torch.float16",
              "bf16|bfloat16|torch.bfloat16"},
             "fp32", "Type of reductions over sequence-parallel ranks; null keeps the native type.")
          .or_null()
          .in_any_case()
          .needs("sequence parallelism"),
      flag("prescale_gradients", false,
           "Divide gradients by the data-parallel size before the reduction instead of after it. "
           "Averages are summed in fp32 and rounded once, so that it makes no difference."),
      number("gradient_predivide_factor", 1.0,
             "Part of the division that happens before the reduction; makes no difference either.")
          .above(0),
      choice("gradient_allreduce_op", {"mean", "sum"}, "mean",
             "How gradients of data-parallel ranks combine. sum is not allowed with ZeRO 3, "
             "zenflow and deepcompile.")
          .in_any_case()
          .chooses(std::vector{true, false}, &Config::zero, &ZeroConfig::average),
      flag("sparse_gradients", false,
           "Reduce the gradient of a token embedding that is not tied to the output as rows and "
           "their numbers, at ZeRO stages 0 and 1 on the CPU, where ranks together have fewer rows "
           "than the table. Elsewhere without effect; results are the same bits.")
          .to(&Config::zero, &ZeroConfig::sparse_gradients),
      flag("disable_allgather", false, "Legacy; without effect, as in DeepSpeed."),
      flag("disable_python_gc", false, "There is no Python here; without effect."),
      flag("use_data_before_expert_parallelism", false,
           "Data-parallel ranks vary fastest in the expert and data mesh.")
          .needs("an expert mesh in another order"),
      integer("sequence_parallel_size", 1, "Ranks that share one sequence; divides the world size.")
          .at_least(1)
          .needs("sequence parallelism"),
      flag("graph_harvesting", false,
           "On a GPU: record the forward and backward pass of each kind of micro batch as a CUDA "
           "graph and launch that from then on, in ds_engine_train_batch; the same bits. Several "
           "ranks reduce gradients, and an offloaded optimizer receives them, after the launch; "
           "until then they lie on the GPU, 4 bytes for each trainable parameter. On the CPU it "
           "changes nothing.")
          .to(&Config::graph_harvesting),
      flag("zero_allow_untested_optimizer", false,
           "Permit ZeRO with an optimizer outside its tested set. Asks for nothing by itself."),
      flag("zero_force_ds_cpu_optimizer", true,
           "Refuse a caller's optimizer under ZeRO CPU offload unless it is a native CPU one. "
           "Asks for nothing by itself."),
  };
}

std::vector<Key> section_rows() {
  return {
      section("fp16", fp16_table()).to(&Config::precision, &PrecisionConfig::loss_scale),
      section("bf16", bf16_table()).also({"bfloat16"}).to(&Config::precision),
      section("fp8", fp8_table()).to(&Config::precision, &PrecisionConfig::fp8),
      section("cuda", cuda_table()).to(&Config::cuda),
      section("amp", amp_table()),
      section("torch_autocast", torch_autocast_table()),
      section("data_types", data_types_table()).to(&Config::precision),
      optional_section("optimizer", optimizer_table()).to(&Config::optimizer),
      optional_section("scheduler", scheduler_table()).to(&Config::scheduler),
      section("zero_optimization", zero_table()).or_bool_for("stage").to(&Config::zero),
      section("aio", aio_table()).to(&Config::aio),
      section("memory_plan", memory_plan_table()).to(&Config::memory_plan),
      section("timers", timers_table()),
      section("tensorboard", tensorboard_table()).to(&Config::tensorboard),
      section("csv_monitor", csv_monitor_table()).to(&Config::csv_monitor),
      section("jsonl_monitor", jsonl_monitor_table()).to(&Config::jsonl_monitor),
      section("wandb", wandb_table()).to(&Config::wandb),
      section("comet", comet_table()),
      section("comms_logger", comms_logger_table()).to(&Config::comms_logger),
      section("flops_profiler", flops_profiler_table()).to(&Config::flops_profiler),
      section("activation_checkpointing", activation_checkpointing_table())
          .to(&Config::activation_checkpointing),
      section("checkpoint", checkpoint_table()).to(&Config::checkpoint),
      section("nebula", nebula_table()),
      optional_section("datastates_ckpt", datastates_table())
          .needs("DataStates checkpointing (its presence enables it)"),
      section("elasticity", elasticity_table()),
      section("autotuning", autotuning_table()),
      section("curriculum_learning", curriculum_learning_table()),
      section("data_efficiency", data_efficiency_table()),
      section("progressive_layer_drop", progressive_layer_drop_table()),
      section("compression_training", compression_table()),
      section("distillation", distillation_table()).to(&Config::distillation),
      section("quantize_training", eigenvalue_table()),
      optional_section("sparse_attention", sparse_attention_table())
          .needs("block-sparse attention (its presence enables it)"),
      section("pipeline", pipeline_table()),
      section("tensor_parallel", tensor_parallel_table()),
      section("expert_parallel", expert_parallel_table()).to(&Config::expert_parallel),
      section("hybrid_engine", hybrid_engine_table()),
      section("compile", compile_table()),
  };
}

KeyTable build() {
  std::vector<Key> rows = batch_rows();
  for (auto part : {engine_rows, communication_rows, section_rows}) {
    for (Key& key : part()) rows.push_back(std::move(key));
  }
  return table("The document is one JSON object.", std::move(rows)).ignores_other_keys();
}

}  // namespace

const KeyTable& config_table() {
  static const KeyTable root = build();
  return root;
}

}  // namespace ds
