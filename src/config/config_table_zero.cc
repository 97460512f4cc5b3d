// zero_optimization with its sub-objects, and aio, which serves its offload to files.
#include "config/config_table.h"

namespace ds {
namespace {

using namespace keys;

// Stage-3 keys may be given without the prefix.
Key stage3(Key key) {
  const std::string bare = key.name.substr(std::string_view("stage3_").size());
  key.aliases.push_back(bare);
  return key;
}

Key size(const char* name, int64_t value, const char* description) {
  return integer(name, value, description).at_least(0);
}

KeyTable offload_param_table() {
  using Offload = ZeroConfig::ParamOffload;
  return table(
             "Where weights rest between uses. Stage 3 only. cpu: in the host's memory, from where "
             "a GPU gets those that it uses; those of a model on the CPU are there anyway. nvme: "
             "in files, from where the host reads them; docs/training.md.",
             {
                 choice("device", {"none", "cpu", "nvme"}, "none",
                        "Place; below stage 3 it has no effect.")
                     .decided_by_caller()
                     .chooses(std::vector{Offload::Device::kNone, Offload::Device::kCpu,
                                          Offload::Device::kNvme},
                              &Offload::device),
                 text("nvme_path", std::nullopt,
                      "Folder for device nvme, which must be there. Files in it have no names and "
                      "go with the process.")
                     .to(&Offload::nvme_path),
                 integer("buffer_count", 5,
                         "Buffers that weights are read ahead into; one that is being used counts "
                         "in stage3_max_live_parameters instead.")
                     .at_least(1)
                     .to(&Offload::buffer_count),
                 size("buffer_size", 100'000'000,
                      "Elements of a buffer. Larger parameters are no error: as many as fit into "
                      "all buffers together are read ahead.")
                     .to(&Offload::buffer_size),
                 size("max_in_cpu", 1'000'000'000, "Elements that stay in memory, of each rank's.")
                     .to(&Offload::max_in_cpu),
                 flag("pin_memory", true, "Use page-locked memory, beside a GPU.")
                     .to(&Offload::pin_memory),
             })
      .gated_by("device", true)
      .accepts_auto();
}

KeyTable offload_optimizer_table() {
  return table(
             "Where masters, gradients and optimizer states rest between updates. Stages 1-3. cpu: "
             "in the host's memory, while a GPU trains; a model on the CPU has them there anyway. "
             "nvme: in files of the host; docs/training.md.",
             {
                 choice("device", {"none", "cpu", "nvme"}, "none", "Place.")
                     .decided_by_caller()
                     .chooses(std::vector{ZeroConfig::OptimizerOffload::Device::kNone,
                                          ZeroConfig::OptimizerOffload::Device::kCpu,
                                          ZeroConfig::OptimizerOffload::Device::kNvme},
                              &ZeroConfig::OptimizerOffload::device),
                 text("nvme_path", std::nullopt,
                      "Folder for device nvme, which must be there. Files in it have no names and "
                      "go with the process.")
                     .to(&ZeroConfig::OptimizerOffload::nvme_path),
                 integer("buffer_count", 4,
                         "Page-locked buffers through which gradients and weights travel, 2 to 64.")
                     .at_least(1)
                     .to(&ZeroConfig::OptimizerOffload::buffer_count),
                 flag("pin_memory", true, "Keep everything in page-locked memory.")
                     .to(&ZeroConfig::OptimizerOffload::pin_memory),
                 flag("pipeline_read", false,
                      "Read the next part during the update. Of device nvme.")
                     .to(&ZeroConfig::OptimizerOffload::pipeline_read),
                 flag("pipeline_write", false,
                      "Write the last part during the update. Of device nvme.")
                     .to(&ZeroConfig::OptimizerOffload::pipeline_write),
                 flag("fast_init", false,
                      "Initialise states on the device. Files begin as zeros without being "
                      "written, so that it makes no difference."),
                 number(
                     "ratio", 1.0,
                     "Share of the state that rests there, counted from its end; the rest stays "
                     "in memory. Of device cpu beside a GPU that is the GPU's memory, and the GPU "
                     "updates it while the host updates its share (Twin-Flow). Of device nvme it "
                     "is the host's. (DeepSpeed: below 1 stage 3 only.)")
                     .at_least(0)
                     .at_most(1)
                     .to(&ZeroConfig::OptimizerOffload::ratio),
                 flag("super_offload", false,
                      "Update parts of the state on threads of their own while backward still "
                      "computes the gradients of others, and undo that bit for bit where gradients "
                      "turn out to be clipped or not finite (SuperOffload). Of device cpu; takes "
                      "as much memory again as masters and optimizer states.")
                     .to(&ZeroConfig::OptimizerOffload::super_offload),
                 number("cpuadam_cores_perc", 0.8,
                        "Share of the threads that the updates of super_offload have beside the "
                        "passes, which keep all of theirs; at least one.")
                     .above(0)
                     .at_most(1)
                     .to(&ZeroConfig::OptimizerOffload::cpuadam_cores_perc),
             })
      .gated_by("device", true)
      .accepts_auto();
}

KeyTable zenflow_table() {
  using ZenFlow = ZeroConfig::ZenFlow;
  return table(
             "ZenFlow: of each matrix the columns with the largest gradients are updated in every "
             "step, and the others in some steps only, by the mean of their gradients until then. "
             "Its presence turns it on. Stages 1-3, with offload_optimizer; docs/training.md.",
             {
                 number("topk_ratio", 0.1, "Share of a matrix's columns that every step updates.")
                     .at_least(0)
                     .at_most(1)
                     .to(&ZenFlow::topk_ratio),
                 choice("select_strategy", {"auto", "step", "epoch"}, "auto",
                        "What select_interval counts: steps, or epochs of the data set, as auto "
                        "does.")
                     .chooses(std::vector{ZenFlow::Strategy::kAuto, ZenFlow::Strategy::kStep,
                                          ZenFlow::Strategy::kEpoch},
                              &ZenFlow::select_strategy),
                 integer("select_interval", std::nullopt,
                         "After so many the columns are chosen anew; auto: after one epoch.")
                     .at_least(1)
                     .or_word("auto")
                     .to(&ZenFlow::select_interval),
                 integer("update_interval", std::nullopt,
                         "Steps between updates of the other columns; auto: when their gradients "
                         "have added up to what the chosen ones get in a step.")
                     .at_least(1)
                     .or_word("auto")
                     .to(&ZenFlow::update_interval),
                 flag("overlap_step", false,
                      "Update the other columns beside the next steps, which go on with the "
                      "weights of the update before.")
                     .to(&ZenFlow::overlap_step),
                 flag("offload", false,
                      "Keep the states of the chosen columns on the host. They always lie there."),
                 number("auto_ratio", 0.99,
                        "With update_interval auto: the share of matrices that ask for an update "
                        "before it is made.")
                     .at_least(0)
                     .at_most(1)
                     .to(&ZenFlow::auto_ratio),
                 integer("full_warm_up_rounds", 0, "Steps at the beginning that update everything.")
                     .at_least(0)
                     .to(&ZenFlow::full_warm_up_rounds),
                 number("pt_reserved_cores_perc", 0.5,
                        "Share of the cores that the update of overlap_step leaves alone; where "
                        "that is none or all it uses all.")
                     .at_least(0)
                     .at_most(1)
                     .to(&ZenFlow::pt_reserved_cores_perc),
             })
      .accepts_auto();
}

KeyTable loco_table() {
  return table("Error feedback of quantised gradients.",
               {
                   number("err_beta", 0.8, "Averaging of the error.")
                       .at_least(0)
                       .at_most(1)
                       .to(&ZeroConfig::ErrorFeedback::err_beta),
                   integer("reset_T", 1024, "Steps between resets of the error.")
                       .at_least(1)
                       .to(&ZeroConfig::ErrorFeedback::reset_T),
               })
      .accepts_auto();
}

Key names(const char* name, const char* value, const char* description) {
  return list(name, any_text(), value, description).or_one_string().without_repeats();
}

KeyTable leaf_module_table() {
  return table(
             "Modules whose parameters are fetched as one. Stage 3. Buckets are what is fetched, "
             "so that "
             "it makes no difference.",
             {
                 names("classes",
                       R"(["MixtralSparseMoeBlock", "Qwen2MoeSparseMoeBlock",
                             "Qwen3MoeSparseMoeBlock"])",
                       "Class names."),
                 names("names", "[]", "Module names."),
                 names("name_suffixes", "[]", "Ends of module names."),
             })
      .accepts_auto();
}

std::vector<Key> bucket_rows() {
  return {
      integer("stage", 0,
              "0 replicates everything; 1, 2, 3 also partition optimizer states, gradients, "
              "parameters.")
          .at_least(0)
          .at_most(3)
          .decided_by_caller()
          .to(&ZeroConfig::stage),
      flag("contiguous_gradients", true,
           "Copy gradients into one buffer. Stages 1-3. They always lie in one."),
      flag("reduce_scatter", true, "Reduce-scatter instead of all-reduce.")
          .to(&ZeroConfig::reduce_scatter),
      size("reduce_bucket_size", 500'000'000,
           "Elements per reduction, and of stage 3 per fetch; more than 16777216 count as that.")
          .to(&ZeroConfig::reduce_bucket_size),
      flag("use_multi_rank_bucket_allreduce", true,
           "One reduction for several owners. 1, 2. There always is one."),
      flag("allgather_partitions", true,
           "All-gather instead of broadcasts. Stages 1, 2. They always are gathered."),
      size("allgather_bucket_size", 500'000'000,
           "Elements per all-gather. Stages 1, 2, where a bucket is reduced and gathered as one: "
           "the smaller of both sizes holds.")
          .even()
          .to(&ZeroConfig::allgather_bucket_size),
      flag("overlap_comm", std::nullopt, "Reduce during backward; null is true for stage 3 only.")
          .to(&ZeroConfig::overlap_comm),
      flag("load_from_fp32_weights", true, "Masters come from the checkpoint's fp32 copy."),
      flag("elastic_checkpoint", false,
           "Checkpoints for another number of ranks: all of them are."),
      flag("round_robin_gradients", false,
           "Spread the gradient copies over ranks. 1, 2. Every bucket is spread evenly anyway."),
      flag("ignore_unused_parameters", true,
           "Parameters without a gradient in a step are no error: it counts as zero.")
          .to(&ZeroConfig::ignore_unused_parameters),
      flag("compute_grad_norm", true,
           "Compute the norm of the gradients where clipping does not need it. It always is."),
      integer("parameter_alignment", std::nullopt,
              "Boundary of parameters in their buffer, in elements. They are aligned in any case.")
          .at_least(1),
      flag("legacy_stage1", false, "The old stage 1; true is an error."),
      integer("sub_group_size", 1'000'000'000,
              "Elements updated at a time, of an offloaded optimizer: at most 1048576 of state in "
              "files, 2097152 of super_offload, and else 8388608. Other updates need no buffers, "
              "so that it makes no difference.")
          .at_least(0)
          .to(&ZeroConfig::sub_group_size),
  };
}

std::vector<Key> stage3_rows() {
  return {
      stage3(size("stage3_prefetch_bucket_size", 50'000'000, "Elements fetched ahead.")
                 .to(&ZeroConfig::prefetch_bucket_size)),
      stage3(size("stage3_param_persistence_threshold", 100'000,
                  "Parameters below this many elements stay whole.")
                 .to(&ZeroConfig::param_persistence_threshold)),
      stage3(size("stage3_model_persistence_threshold", INT64_MAX,
                  "Total elements that may stay whole.")
                 .to(&ZeroConfig::model_persistence_threshold)),
      stage3(size("stage3_max_live_parameters", 1'000'000'000, "Elements gathered at a time.")
                 .to(&ZeroConfig::max_live_parameters)),
      stage3(size("stage3_max_reuse_distance", 1'000'000'000,
                  "Keep a parameter that is used again within so many elements.")
                 .to(&ZeroConfig::max_reuse_distance)),
      stage3(size("stage3_tile_size", 0,
                  "Elements of a linear layer's weight that are gathered, and of its gradient that "
                  "are reduced, at a time; 0: all of it.")
                 .to(&ZeroConfig::tile_size)),
      stage3(flag("stage3_gather_16bit_weights_on_model_save", false,
                  "Save whole 16-bit weights. ds_model_export does so at every stage.")),
      flag("stage3_gather_fp16_weights_on_model_save", false, "Old name.")
          .replaced_by("stage3_gather_16bit_weights_on_model_save"),
      stage3(size("stage3_module_granularity_threshold", 0,
                  "Modules below this granularity are fetched as one. Buckets are what is fetched, "
                  "so that it makes no difference.")),
      stage3(flag("stage3_use_all_reduce_for_fetch_params", false,
                  "Fetch with an all-reduce of zeros and slices. They are gathered in any case.")),
      stage3(flag("stage3_allgather_sequential", false, "One fetch at a time; no prefetching.")),
      flag("memory_efficient_linear", true,
           "Linear layers keep no gathered weight. They never keep one."),
      flag("pipeline_loading_checkpoint", false,
           "Ranks read a checkpoint one after another instead of at once.")
          .to(&ZeroConfig::pipeline_loading_checkpoint),
      flag("override_module_apply", true,
           "Initialisers see whole parameters. There are no initialisers of modules here."),
      flag("log_trace_cache_warnings", false,
           "Log a warning when weights are fetched in another order than in the pass before.")
          .to(&ZeroConfig::log_trace_cache_warnings),
      flag("enable_sanity_checks", false,
           "After every update, compare whole weights between ranks, and weights in pieces with "
           "their masters. Refuse to drop changes of gathered parameters.")
          .to(&ZeroConfig::enable_sanity_checks),
      flag("save_muon_momentum_buffer_in_memory", false,
           "Keep Muon's momentum whole. It is never gathered: directions are."),
  };
}

std::vector<Key> wire_rows() {
  return {
      integer("zero_hpz_partition_size", 1,
              "Consecutive ranks that keep a second copy of the weights, for backward; 1: none. "
              "Stage 3.")
          .at_least(1)
          .to(&ZeroConfig::zero_hpz_partition_size),
      flag("zero_quantized_weights", false, "Weights are gathered in 8 bits. Stage 3.")
          .to(&ZeroConfig::zero_quantized_weights),
      flag("zero_quantized_nontrainable_weights", false,
           "Frozen weights are, if they have more than 500000 elements. Stage 3.")
          .to(&ZeroConfig::zero_quantized_nontrainable_weights),
      flag("zero_quantized_gradients", false,
           "Gradients of matrices are reduced in 4 bits, where there are several nodes. Stage 3.")
          .to(&ZeroConfig::zero_quantized_gradients),
      integer("mics_shard_size", -1,
              "Consecutive ranks that hold one copy of the state together; -1: all. Stage 3.")
          .at_least(-1)
          .to(&ZeroConfig::mics_shard_size),
      flag("mics_hierarchical_params_gather", false, "MiCS gathers across nodes, then within them.")
          .to(&ZeroConfig::mics_hierarchical_params_gather),
  };
}

std::vector<Key> object_rows() {
  return {
      optional_section("offload_param", offload_param_table()).to(&ZeroConfig::offload_param),
      optional_section("offload_optimizer", offload_optimizer_table())
          .to(&ZeroConfig::offload_optimizer),
      flag("cpu_offload", false, "Offload the optimizer to the CPU.")
          .replaced_by("offload_optimizer/device", "cpu"),
      flag("cpu_offload_param", false, "Offload parameters to the CPU.")
          .replaced_by("offload_param/device", "cpu"),
      flag("cpu_offload_use_pin_memory", true, "Page-locked memory for offload.")
          .retired("set pin_memory in offload_param and offload_optimizer"),
      optional_section("zenflow", zenflow_table()).to(&ZeroConfig::zenflow),
      optional_section("zeropp_loco_param", loco_table()).to(&ZeroConfig::zeropp_loco_param),
      section("leaf_module", leaf_module_table()),
  };
}

}  // namespace

KeyTable zero_table() {
  std::vector<Key> rows = bucket_rows();
  for (auto part : {stage3_rows, wire_rows, object_rows}) {
    for (Key& key : part()) rows.push_back(std::move(key));
  }
  return table(
             "Partitioning of training state over data-parallel ranks. Sizes count elements. A "
             "bare boolean is the deprecated form of stage 1 or 0.",
             std::move(rows))
      .gated_by("stage")
      .accepts_auto();
}

KeyTable aio_table() {
  return table(
             "File access of what rests in files (offload_optimizer and offload_param with device "
             "nvme, activation_checkpointing.nvme_checkpointing): past the page cache, by "
             "io_uring, "
             "libaio or threads. Without such files nothing is accessed, and the values are "
             "checked alone.",
             {
                 size("block_size", 1'048'576,
                      "Bytes per request; counts as the next multiple of 4096.")
                     .to(&AioConfig::block_size),
                 integer("queue_depth", 8, "Requests in flight; more than 4096 count as that.")
                     .at_least(1)
                     .to(&AioConfig::queue_depth),
                 integer("intra_op_parallelism", 1,
                         "Threads that share a read, each one piece of it, and as many a write; "
                         "more than 64 count as that.")
                     .at_least(1)
                     .to(&AioConfig::intra_op_parallelism),
                 integer("thread_count", std::nullopt,
                         "Old name of intra_op_parallelism, which DeepSpeed passes over.")
                     .at_least(1),
                 flag("single_submit", false,
                      "Hand each request to the system by a call of its own; else all that fit by "
                      "one.")
                     .to(&AioConfig::single_submit),
                 flag("overlap_events", true,
                      "Begin the next request as soon as one has ended; else when all that are "
                      "under way have.")
                     .to(&AioConfig::overlap_events),
                 flag("use_gds", false, "Move data from file to GPU directly. CUDA only.")
                     .needs("GPUDirect Storage")
                     .always(),
             })
      .ignores_other_keys();
}

}  // namespace ds
