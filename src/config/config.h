// The configuration of an engine: the DeepSpeed JSON document as typed structs, with the resolved
// document and the origin of every value beside them.
//
// The structs cover what this build honours. Everything else is still parsed and checked, and a
// value that would ask for it is an error.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "config/batch.h"
#include "config/check.h"
#include "config/optimizer_types.h"
#include "config/options.h"

namespace ds {

enum class Precision { kFp32, kFp16, kBf16 };

// Loss scaling of fp16 training.
struct LossScaleConfig {
  double loss_scale = 0;             // static; 0 = dynamic
  int initial_scale_power = 16;      // dynamic: starts at 2 to this power
  int64_t loss_scale_window = 1000;  // clean steps before it doubles
  int64_t hysteresis = 2;            // overflows before it halves
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
  bool wrapper = false;  // no hysteresis, and no end at the lower bound
};

// Linear layers of 8-bit codes; see docs/fp8.md.
struct Fp8Config {
  bool enabled = false;
  bool hybrid = true;  // gradients in E5M2
  int margin = 0;
  int64_t amax_history_len = 16;
  bool most_recent = false;
  bool fast_accumulation = true;  // in forward products of a GPU
};

struct PrecisionConfig {
  Precision compute = Precision::kFp32;
  // bf16: skip steps whose gradients hold an infinity or NaN.
  bool check_grad_overflow = true;
  // bf16: masters are the model's weights plus the low halves of the fp32 numbers.
  bool split_master = false;
  // Masters are the weights, in the type that computes, and updates round to it.
  bool rounded_masters = false;
  Precision grad_accum_dtype = Precision::kFp32;         // of accumulated gradients
  Precision communication_data_type = Precision::kFp32;  // of reduced gradients
  LossScaleConfig loss_scale;                            // used when compute is fp16
  Fp8Config fp8;
};

// How the optimizer keeps its moments. int8 is block-wise (Dettmers et al., arXiv:2110.02861).
enum class OptimizerStateType { kFp32, kBf16, kInt8 };

enum class MuonMethod { kGram, kStandard };

// Parameters with hyperparameters of their own; what is unset is the optimizer's.
struct OptimizerGroupConfig {
  std::string name;
  std::vector<std::string> match;  // patterns of parameter names: * is any text, ? one character
  std::optional<double> lr;
  std::optional<double> beta1;
  std::optional<double> beta2;
  std::optional<double> eps;
  std::optional<double> weight_decay;
  std::optional<double> momentum;
  std::optional<double> muon_lr;
  std::optional<double> adam_lr;
};

// Maximal update parametrisation (Yang et al., arXiv:2203.03466): the shape that parameters have in
// the model whose rates are the configured ones.
struct BaseShapeConfig {
  std::vector<std::string> match;  // patterns, as of groups
  std::vector<int64_t> shape;      // 0: the size does not count as width
};
enum class DecayShape { kLinear, kCosine };

// Moves the weight decay of groups without one of their own, over the steps of schedules.
struct DecayScheduleConfig {
  DecayShape type = DecayShape::kLinear;
  double start = 0;
  double end = 0;
  int64_t total_num_steps = 1;  // from then on it is `end`
};

struct OptimizerConfig {
  OptimizerType type = OptimizerType::kAdamW;
  double lr = 1e-3;
  double beta1 = 0.9;  // this and the next one: of `betas`
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  // Decoupled weight decay (AdamW) or L2 regularisation, as type and adam_w_mode together say.
  bool decoupled = true;
  bool bias_correction = true;
  bool amsgrad = false;
  // Adagrad.
  double lr_decay = 0;
  double initial_accumulator_value = 0;
  double momentum_decay = 4e-3;  // NAdam
  bool centered = false;         // RMSprop, whose alpha is beta2
  // SGD, RMSprop and Muon.
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  // LAMB.
  double max_coeff = 10;
  double min_coeff = 0.01;
  bool eps_inside_sqrt = false;
  // Muon: `lr` is the rate of matrices, this one of the rest, which Adam updates.
  double adam_lr = 3e-4;
  MuonMethod ns_method = MuonMethod::kGram;

  MuRule mu = MuRule::kNone;
  std::vector<BaseShapeConfig> base_shapes;  // the first that matches counts

  std::optional<DecayScheduleConfig> weight_decay_schedule;
  bool decay_all = false;  // else parameters that say so do not decay, unless their group asks
  OptimizerStateType state_dtype = OptimizerStateType::kFp32;
  std::vector<OptimizerGroupConfig>
      param_groups;  // group 0 is the default one, then these in order
};

// Schedules; their fields have the names of their keys.
enum class WarmupShape { kLog, kLinear };

// A number for all parameter groups, or one for each: of the default group, then of the others.
struct PerGroup {
  PerGroup(double one = 0) : values{one} {}
  explicit PerGroup(std::vector<double> each) : values(std::move(each)) {}
  double of(size_t group) const { return values.size() == 1 ? values[0] : values.at(group); }
  std::vector<double> values;
};

struct LrRangeTestConfig {
  PerGroup lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1.0;
  bool lr_range_test_staircase = false;
};
struct WarmupLrConfig {
  PerGroup warmup_min_lr;
  std::optional<PerGroup> warmup_max_lr;  // unset: each group's own rate
  int64_t warmup_num_steps = 1000;
  WarmupShape warmup_type = WarmupShape::kLog;
};
struct WarmupDecayLrConfig {
  int64_t total_num_steps = 0;
  PerGroup warmup_min_lr;
  std::optional<PerGroup> warmup_max_lr;
  int64_t warmup_num_steps = 1000;
  WarmupShape warmup_type = WarmupShape::kLog;
};
struct WarmupCosineLrConfig {  // ratios of each group's own rate
  int64_t total_num_steps = 0;
  double warmup_min_ratio = 0;
  double cos_min_ratio = 1e-4;
  int64_t warmup_num_steps = 1000;
  WarmupShape warmup_type = WarmupShape::kLog;
};
struct OneCycleConfig {
  PerGroup cycle_min_lr;
  PerGroup cycle_max_lr;
  int64_t cycle_first_step_size = 2000;
  int64_t cycle_second_step_size = 2000;
  int64_t cycle_first_stair_count = 0;
  int64_t cycle_second_stair_count = 0;
  int64_t decay_step_size = 0;
  double decay_lr_rate = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0;
};

using SchedulerConfig = std::variant<LrRangeTestConfig, WarmupLrConfig, WarmupDecayLrConfig,
                                     WarmupCosineLrConfig, OneCycleConfig>;

struct MonitorConfig {
  bool enabled = false;
  std::string output_path;  // "" = the current folder
  std::string job_name;
};

struct WandbConfig {
  bool enabled = false;
  std::string output_path;  // "" = the current folder
  std::string project;
  std::string team;
  std::string group;
};

struct FlopsProfilerConfig {
  bool enabled = false;
  double recompute_fwd_factor = 0;
  int64_t profile_step = 1;
  int64_t module_depth = -1;
  int64_t top_modules = 1;
  bool detailed = true;
  std::string output_file;  // "" = the log
};

struct ExpertParallelConfig {
  bool enabled = false;
  int autoep_size = 1;
  std::optional<bool> hierarchical_all_to_all;  // none: where it is of use

  // That share the experts of each layer.
  int ranks() const { return enabled ? autoep_size : 1; }
};

// A student that learns from a teacher's outputs besides the labels.
struct DistillationConfig {
  enum class Weights { kAuto, kFp32, kBf16, kInt8, kInt4 };

  bool enabled = false;
  std::string teacher;               // folder of its model
  double kd_alpha_ce = 1;            // weight of the loss with the labels
  double kd_beta_ce = 1;             // of the divergence from the teacher
  double kd_temp = 1;                // temperature of both distributions in it
  std::optional<int64_t> stop_step;  // steps after which labels alone count; unset: never
  Weights teacher_weights = Weights::kAuto;

  // In a step that comes after so many others.
  bool active(int64_t steps) const { return enabled && (!stop_step || steps < *stop_step); }
};

// A new student whose layers begin as layers of its teacher, which /distillation/teacher names.
struct LayerReductionConfig {
  bool enabled = false;
  std::optional<int64_t> keep_number_layer;  // of the student
  std::string module_name_prefix;            // of the layers; empty: what the model calls them
  std::vector<int64_t> teacher_layer;        // by layer of the student
  // Modules that are copied besides; unset: all that are no layers.
  std::optional<std::vector<std::string>> other_module_name;
};

struct ActivationCheckpointingConfig {
  bool enabled = false;
  std::optional<int64_t> number_checkpoints;    // segments; unset: every transformer block is one
  std::optional<int64_t> checkpoint_every_nth;  // instead: only every so-many-th block
  bool cpu_checkpointing = false;               // kept inputs wait in host memory
  bool nvme_checkpointing = false;              // kept inputs wait in files
  std::string nvme_path;                        // folder of the files
  bool in_files() const { return enabled && nvme_checkpointing; }
};

struct CommsLoggerConfig {
  bool enabled = false;
  bool verbose = false;               // a log line for each collective
  bool prof_all = true;               // else only those of `prof_ops`
  std::vector<std::string> prof_ops;  // all_reduce, ...
};

// Sizes in elements. Names are those of the keys, without "stage3_".
struct ZeroConfig {
  int stage = 0;
  bool overlap_comm = false;
  bool reduce_scatter = true;
  bool average = true;            // of gradients, rather than their sum
  bool sparse_gradients = false;  // of token embeddings, which travel as rows
  int64_t reduce_bucket_size = 500'000'000;
  int64_t allgather_bucket_size = 500'000'000;  // stages 1 and 2
  int64_t prefetch_bucket_size = 50'000'000;    // 0: weights are fetched when they are needed
  int64_t param_persistence_threshold = 100'000;
  int64_t model_persistence_threshold = INT64_MAX;
  int64_t max_live_parameters = 1'000'000'000;
  int64_t max_reuse_distance = 1'000'000'000;
  int64_t tile_size = 0;                     // of a linear layer's weight; 0: it stays in one
  bool ignore_unused_parameters = true;      // those without a gradient are no error
  bool enable_sanity_checks = false;         // weights are compared after every update
  bool log_trace_cache_warnings = false;     // of weights fetched in another order
  bool pipeline_loading_checkpoint = false;  // one rank after another reads it
  int mics_shard_size = -1;                  // ranks that hold one copy together; below 1: all
  bool mics_hierarchical_params_gather = false;
  int zero_hpz_partition_size = 1;  // ranks that hold a second copy of the weights; 1: none
  bool zero_quantized_weights = false;
  bool zero_quantized_nontrainable_weights = false;
  bool zero_quantized_gradients = false;
  // What the rounding of gradients loses is kept: share of the old error, and reductions until it
  // is forgotten.
  struct ErrorFeedback {
    double err_beta = 0.8;
    int64_t reset_T = 1024;
  };
  std::optional<ErrorFeedback> zeropp_loco_param;
  int64_t sub_group_size = 1'000'000'000;  // that an update takes at a time, where it matters
  // The optimizer's state rests in the host's memory beside a GPU, or in files.
  struct OptimizerOffload {
    enum class Device { kNone, kCpu, kNvme };
    Device device = Device::kNone;
    std::string nvme_path;  // folder of the files
    bool pin_memory = true;
    int buffer_count = 4;         // through which gradients and weights travel, of pinned memory
    bool pipeline_read = false;   // the next part is read during the update
    bool pipeline_write = false;  // the last part is written during the update
    double ratio = 1;             // of the state: this share rests there, the rest stays
    bool super_offload = false;   // parts are updated before the step, and undone if need be
    double cpuadam_cores_perc = 0.8;  // of the threads, for such updates
    bool in_files() const { return device == Device::kNvme; }
  };
  std::optional<OptimizerOffload> offload_optimizer;
  // Weights of stage 3 rest in the host's memory, or in files.
  struct ParamOffload {
    enum class Device { kNone, kCpu, kNvme };
    Device device = Device::kNone;
    std::string nvme_path;  // folder of the files
    int buffer_count = 5;   // read ahead are so many times `buffer_size` elements, at most
    int64_t buffer_size = 100'000'000;
    int64_t max_in_cpu = 1'000'000'000;  // elements that stay in memory
    bool pin_memory = true;
    bool in_files() const { return device == Device::kNvme; }
  };
  std::optional<ParamOffload> offload_param;
  // Of each matrix the columns with the largest gradients are updated in every step, and the others
  // in some steps only, by the mean of their gradients until then.
  struct ZenFlow {
    enum class Strategy { kAuto, kStep, kEpoch };
    double topk_ratio = 0.1;  // of a matrix's columns
    Strategy select_strategy = Strategy::kAuto;
    std::optional<int64_t> select_interval;  // in steps or epochs; unset: one epoch
    std::optional<int64_t> update_interval;  // in steps; unset: the gradients decide
    bool overlap_step = false;               // the others are updated beside the next steps
    double auto_ratio = 0.99;  // of the matrices: so many ask for an update before it is made
    int64_t full_warm_up_rounds = 0;      // steps at the beginning that update everything
    double pt_reserved_cores_perc = 0.5;  // of the cores, that an update beside leaves to others
    bool by_epoch() const { return select_strategy != Strategy::kStep; }
  };
  std::optional<ZenFlow> zenflow;
};

// File access of what rests in files.
struct AioConfig {
  int64_t block_size = 1'048'576;  // bytes per request
  int queue_depth = 8;             // requests under way
  int intra_op_parallelism = 1;    // threads that share a read, and as many a write
  bool single_submit = false;      // each request by a system call of its own
  bool overlap_events = true;      // the next request begins as soon as one has ended
};

// The plan of memory that engines check when they are made; see docs/train-what-does-not-fit.md.
struct MemoryPlanConfig {
  enum class Check { kRefuse, kWarn, kOff };
  Check check = Check::kRefuse;
  std::optional<int64_t> sequence_length;  // of samples; unset: nobody knows yet
  std::optional<int64_t> limit_bytes;      // of the host's memory that a rank may have
  // Bytes that a use of memory may have, by the names of the plan.
  struct Budgets {
    std::optional<int64_t> parameters, gradients, optimizer, activations, communication, io, files;
  };
  Budgets budgets;
};

enum class TagValidation { kWarn, kIgnore, kFail };

struct CheckpointConfig {
  TagValidation tag_validation = TagValidation::kWarn;
  bool exclude_frozen_parameters = false;
  int64_t keep = 0;        // of a run in its folder; 0: all
  bool decoupled = false;  // they are written beside the training
};

// Which algorithms a GPU may use; see docs/cuda.md.
struct CudaConfig {
  enum class Attention { kAuto, kOwn, kCudnn };
  Attention attention = Attention::kAuto;
  bool strict_determinism = false;
  bool time_products = false;
  bool tf32 = false;
};

class Config {
 public:
  BatchConfig batch;
  std::optional<BatchRampUp> batch_ramp_up;  // how `batch` grows to what it is here
  PrecisionConfig precision;
  bool managed_gradient_accumulation = true;  // false: every step is a boundary
  std::optional<OptimizerConfig> optimizer;   // always set by load_config
  std::optional<SchedulerConfig> scheduler;
  double gradient_clipping = 1.0;                        // 0 = off
  std::optional<int64_t> eval_micro_batch_size_per_gpu;  // else that of training
  double gradient_skip_norm = 0;  // steps with a larger norm are skipped; 0 = off
  // Steps skipped in a row that end training with an error; 0 = never.
  int64_t max_consecutive_skips = 100;

  uint64_t seed = 1234;
  int threads = 0;  // 0 = CPUs of the process
  std::vector<int> thread_affinity;
  std::optional<int64_t> steps_per_print;
  bool dump_state = false;
  bool wall_clock_breakdown = false;
  bool memory_breakdown = false;
  bool dataloader_drop_last = false;
  std::string dataloader_type = "passes";  // or single, cyclic
  bool data_sharding = true;
  bool graph_harvesting = false;  // micro batches are recorded as CUDA graphs
  CudaConfig cuda;

  MonitorConfig tensorboard;
  MonitorConfig csv_monitor;
  MonitorConfig jsonl_monitor;
  WandbConfig wandb;
  FlopsProfilerConfig flops_profiler;
  bool throughput = true;  // measured and reported
  ActivationCheckpointingConfig activation_checkpointing;
  ZeroConfig zero;
  ExpertParallelConfig expert_parallel;
  DistillationConfig distillation;
  LayerReductionConfig layer_reduction;
  AioConfig aio;
  MemoryPlanConfig memory_plan;
  CommsLoggerConfig comms_logger;
  CheckpointConfig checkpoint;

  // Every key of every section with its value; itself a valid document.
  const Json& resolved() const noexcept { return parsed_.values; }
  // What the caller asked for and nothing else; see given_document().
  Json given() const { return given_document(parsed_); }
  // JSON pointer of each value -> "given", "set", "auto", "default", "derived" or
  // "deprecated:<pointer>".
  const std::map<std::string, std::string>& origins() const noexcept { return parsed_.origins; }
  // Deprecated keys and settings without effect; the caller decides whether to log them.
  const std::vector<std::string>& warnings() const noexcept { return parsed_.warnings; }

 private:
  friend Config load_config(std::string_view json_text, const ConfigEnvironment& environment,
                            const ReadOptions& options);
  ParsedObject parsed_;
};

// Parses and resolves one document; // and /* */ comments are allowed. Throws
// Error(Code::kConfig) with the JSON path of the first problem, and where the others are.
Config load_config(std::string_view json_text, const ConfigEnvironment& environment = {},
                   const ReadOptions& options = {});

}  // namespace ds
