#include "config/config.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "config/config_table.h"

namespace ds {
namespace {

template <class T>
std::optional<T> optional_at(const ParsedObject& parsed, std::string_view path) {
  const Json& value = parsed.at(path);
  return value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

template <class T>
T get(const ParsedObject& parsed, std::string_view path) {
  return parsed.at(path).get<T>();
}

Precision precision_of(const Json& name) {
  if (name == "fp16") return Precision::kFp16;
  return name == "bf16" ? Precision::kBf16 : Precision::kFp32;
}

PrecisionConfig read_precision(const ParsedObject& parsed) {
  PrecisionConfig out;
  if (get<bool>(parsed, "/fp16/enabled")) out.compute = Precision::kFp16;
  if (get<bool>(parsed, "/bf16/enabled")) out.compute = Precision::kBf16;
  out.check_grad_overflow = get<bool>(parsed, "/bf16/check_grad_overflow");
  out.split_master = out.compute == Precision::kBf16 && get<bool>(parsed, "/bf16/split_master");
  out.rounded_masters =
      (out.compute == Precision::kBf16 &&
       get<bool>(parsed, "/bf16/bf16_master_weights_and_grads")) ||
      (out.compute == Precision::kFp16 && get<bool>(parsed, "/fp16/fp16_master_weights_and_grads"));
  out.accumulate = precision_of(parsed.at("/data_types/grad_accum_dtype"));
  out.communicate = precision_of(parsed.at("/communication_data_type"));
  out.loss_scale = {get<double>(parsed, "/fp16/loss_scale"),
                    get<int>(parsed, "/fp16/initial_scale_power"),
                    get<int64_t>(parsed, "/fp16/loss_scale_window"),
                    get<int64_t>(parsed, "/fp16/hysteresis"),
                    get<bool>(parsed, "/fp16/consecutive_hysteresis"),
                    get<double>(parsed, "/fp16/min_loss_scale"),
                    parsed.at("/fp16/scaler") == "wrapper"};
  out.fp8 = {get<bool>(parsed, "/fp8/enabled"),
             parsed.at("/fp8/format") == "hybrid",
             get<int>(parsed, "/fp8/margin"),
             get<int64_t>(parsed, "/fp8/amax_history_len"),
             parsed.at("/fp8/amax_compute_algo") == "most_recent",
             get<bool>(parsed, "/fp8/fast_accumulation")};
  return out;
}

CudaConfig read_cuda(const ParsedObject& parsed) {
  CudaConfig out;
  if (parsed.at("/cuda/attention") == "own") out.attention = CudaConfig::Attention::kOwn;
  if (parsed.at("/cuda/attention") == "cudnn") out.attention = CudaConfig::Attention::kCudnn;
  out.strict_determinism = get<bool>(parsed, "/cuda/strict_determinism");
  out.time_products = get<bool>(parsed, "/cuda/time_products");
  out.tf32 = get<bool>(parsed, "/cuda/tf32");
  return out;
}

const KnownOptimizer& optimizer_of(const std::string& name) {
  for (const KnownOptimizer& known : kOptimizers) {
    if (name == known.name) return known;
  }
  fail(Code::kInternal, "no typed parameters for optimizer ", name);
}

std::vector<BaseShapeConfig> read_base_shapes(const Json& params) {
  std::vector<BaseShapeConfig> out;
  const auto found = params.find("base_shapes");
  if (found == params.end()) return out;
  for (const Json& one : *found) {
    out.push_back({one.at("match").get<std::vector<std::string>>(), {}});
    for (const Json& size : one.at("shape")) {
      out.back().shape.push_back(size.is_null() ? 0 : size.get<int64_t>());
    }
  }
  return out;
}

OptimizerGroupConfig read_group(const Json& group) {
  const auto number = [&](const char* name) {
    const Json& value = group.at(name);
    return value.is_null() ? std::nullopt : std::optional<double>(value.get<double>());
  };
  OptimizerGroupConfig out;
  out.name = group.at("name").get<std::string>();
  for (const Json& pattern : group.at("match")) out.match.push_back(pattern.get<std::string>());
  out.lr = number("lr");
  if (const Json& betas = group.at("betas"); !betas.is_null()) {
    out.beta1 = betas.at(0).get<double>();
    out.beta2 = betas.at(1).get<double>();
  }
  out.eps = number("eps");
  out.weight_decay = number("weight_decay");
  out.momentum = number("momentum");
  out.muon_lr = number("muon_lr");
  out.adam_lr = number("adam_lr");
  return out;
}

OptimizerConfig read_optimizer(const ParsedObject& parsed) {
  const Json& params = parsed.at("/optimizer/params");
  // The type's own parameters only.
  const auto number = [&](const char* name, double& to) {
    const auto it = params.find(name);
    if (it != params.end() && !it->is_null()) to = it->get<double>();
  };
  const auto flag = [&](const char* name, bool& to) {
    if (const auto it = params.find(name); it != params.end()) to = it->get<bool>();
  };
  OptimizerConfig out;
  const KnownOptimizer& known = optimizer_of(parsed.at("/optimizer/type").get<std::string>());
  out.type = known.type;
  out.mu = known.mu;
  number("lr", out.lr);
  if (const auto betas = params.find("betas"); betas != params.end()) {
    out.beta1 = betas->at(0).get<double>();
    out.beta2 = betas->at(1).get<double>();
  }
  number("eps", out.eps);
  number("weight_decay", out.weight_decay);
  using enum OptimizerType;
  flag("adam_w_mode", out.decoupled);
  if (out.type != kAdam) {
    out.decoupled = out.type != kAdagrad && out.type != kSgd && out.type != kRmsprop;
  }
  if (out.type == kAdam && out.mu != MuRule::kNone) out.decoupled = false;
  flag("decoupled_weight_decay", out.decoupled);
  flag("bias_correction", out.bias_correction);
  flag("amsgrad", out.amsgrad);
  number("lr_decay", out.lr_decay);
  number("initial_accumulator_value", out.initial_accumulator);
  number("momentum_decay", out.momentum_decay);
  number("alpha", out.beta2);
  flag("centered", out.centered);
  out.base_shapes = read_base_shapes(params);
  number("momentum", out.momentum);
  number("dampening", out.dampening);
  flag("nesterov", out.nesterov);
  number("max_coeff", out.max_coeff);
  number("min_coeff", out.min_coeff);
  flag("eps_inside_sqrt", out.eps_inside_sqrt);
  if (out.type == kMuon) {
    if (parsed.is_given("/optimizer/params/lr")) out.adam_lr = out.lr;
    number("adam_lr", out.adam_lr);
    number("muon_lr", out.lr);
    if (params.at("ns_method") == "standard") out.ns_method = MuonMethod::kStandard;
  }
  out.decay_all = parsed.at("/optimizer/decay_all").get<bool>();
  const Json& decay = parsed.at("/optimizer/weight_decay_schedule");
  if (!decay.is_null()) {
    out.decay_schedule = {decay.at("type") == "cosine", decay.at("start").get<double>(),
                          decay.at("end").get<double>(),
                          decay.at("total_num_steps").get<int64_t>()};
  }
  const Json& states = parsed.at("/optimizer/state_dtype");
  if (states == "bf16") out.state_type = OptimizerStateType::kBf16;
  if (states == "int8") out.state_type = OptimizerStateType::kInt8;
  for (const Json& group : parsed.at("/optimizer/param_groups")) {
    out.groups.push_back(read_group(group));
  }
  return out;
}

SchedulerConfig read_scheduler(const ParsedObject& parsed) {
  const Json& params = parsed.at("/scheduler/params");
  const auto number = [&](const char* name) { return params.at(name).get<double>(); };
  const auto rates = [&](const char* name) {
    const Json& value = params.at(name);
    return value.is_array() ? PerGroup(value.get<std::vector<double>>())
                            : PerGroup(value.get<double>());
  };
  const auto maybe = [&](const char* name) {
    return params.at(name).is_null() ? std::nullopt : std::optional<PerGroup>(rates(name));
  };
  const auto steps = [&](const char* name) { return params.at(name).get<int64_t>(); };
  const auto flag = [&](const char* name) { return params.at(name).get<bool>(); };
  const auto shape = [&] {
    return params.at("warmup_type") == "log" ? WarmupShape::kLog : WarmupShape::kLinear;
  };

  const std::string type = parsed.at("/scheduler/type").get<std::string>();
  if (type == "LRRangeTest") {
    return LrRangeTestConfig{rates("lr_range_test_min_lr"), steps("lr_range_test_step_size"),
                             number("lr_range_test_step_rate"), flag("lr_range_test_staircase")};
  }
  if (type == "WarmupLR") {
    return WarmupLrConfig{rates("warmup_min_lr"), maybe("warmup_max_lr"), steps("warmup_num_steps"),
                          shape()};
  }
  if (type == "WarmupDecayLR") {
    return WarmupDecayLrConfig{steps("total_num_steps"), rates("warmup_min_lr"),
                               maybe("warmup_max_lr"), steps("warmup_num_steps"), shape()};
  }
  if (type == "WarmupCosineLR") {
    return WarmupCosineLrConfig{steps("total_num_steps"), number("warmup_min_ratio"),
                                number("cos_min_ratio"), steps("warmup_num_steps"), shape()};
  }
  DS_CHECK(type == "OneCycle", Code::kInternal, "no typed parameters for schedule ", type);
  return OneCycleConfig{.min_lr = rates("cycle_min_lr"),
                        .max_lr = rates("cycle_max_lr"),
                        .first_steps = steps("cycle_first_step_size"),
                        .second_steps = steps("cycle_second_step_size"),
                        .first_stairs = steps("cycle_first_stair_count"),
                        .second_stairs = steps("cycle_second_stair_count"),
                        .decay_steps = steps("decay_step_size"),
                        .decay_lr_rate = number("decay_lr_rate"),
                        .cycle_momentum = flag("cycle_momentum"),
                        .min_momentum = number("cycle_min_mom"),
                        .max_momentum = number("cycle_max_mom"),
                        .decay_momentum_rate = number("decay_mom_rate")};
}

MonitorConfig read_monitor(const ParsedObject& parsed, std::string_view section) {
  const Json& values = parsed.at(section);
  return {values.at("enabled").get<bool>(), values.at("output_path").get<std::string>(),
          values.at("job_name").get<std::string>()};
}

WandbConfig read_wandb(const ParsedObject& parsed) {
  const Json& values = parsed.at("/wandb");
  const auto text = [&](const char* name) {
    const Json& value = values.at(name);
    return value.is_null() ? std::string() : value.get<std::string>();
  };
  return {values.at("enabled").get<bool>(), text("output_path"), text("project"), text("team"),
          text("group")};
}

FlopsProfilerConfig read_flops_profiler(const ParsedObject& parsed) {
  const Json& values = parsed.at("/flops_profiler");
  const Json& file = values.at("output_file");
  return {values.at("enabled").get<bool>(),
          values.at("recompute_fwd_factor").get<double>(),
          values.at("profile_step").get<int64_t>(),
          values.at("module_depth").get<int64_t>(),
          values.at("top_modules").get<int64_t>(),
          values.at("detailed").get<bool>(),
          file.is_null() ? std::string() : file.get<std::string>()};
}

CommsLoggerConfig read_comms_logger(const ParsedObject& parsed) {
  const Json& values = parsed.at("/comms_logger");
  return {values.at("enabled").get<bool>(), values.at("verbose").get<bool>(),
          values.at("prof_all").get<bool>(), values.at("prof_ops").get<std::vector<std::string>>()};
}

ZeroConfig read_zero(const ParsedObject& parsed) {
  const Json& values = parsed.at("/zero_optimization");
  const auto size = [&](const char* key) { return values.at(key).get<int64_t>(); };
  ZeroConfig out;
  out.stage = values.at("stage").get<int>();
  out.reduce_scatter = values.at("reduce_scatter").get<bool>();
  out.average = parsed.at("/gradient_allreduce_op") != "sum";
  out.sparse = parsed.at("/sparse_gradients").get<bool>();
  out.overlap = values.at("overlap_comm").get<bool>();
  out.reduce_bucket = size("reduce_bucket_size");
  out.gather_bucket = size("allgather_bucket_size");
  out.ignore_unused = values.at("ignore_unused_parameters").get<bool>();
  out.sanity_checks = values.at("enable_sanity_checks").get<bool>();
  out.tell_order_changes = values.at("log_trace_cache_warnings").get<bool>();
  out.load_in_turn = values.at("pipeline_loading_checkpoint").get<bool>();
  // Fetching one at a time is fetching nothing ahead.
  out.prefetch = values.at("stage3_allgather_sequential").get<bool>()
                     ? 0
                     : size("stage3_prefetch_bucket_size");
  out.param_persistence_threshold = size("stage3_param_persistence_threshold");
  out.model_persistence_threshold = size("stage3_model_persistence_threshold");
  out.max_live = size("stage3_max_live_parameters");
  out.max_reuse = size("stage3_max_reuse_distance");
  out.tile = size("stage3_tile_size");
  out.sub_group = size("sub_group_size");
  if (const Json& offload = values.at("offload_optimizer");
      offload.is_object() && offload.at("device") == "cpu") {
    out.offload_optimizer = {
        offload.at("pin_memory").get<bool>(),
        static_cast<int>(std::min<int64_t>(offload.at("buffer_count").get<int64_t>(), 64))};
  }
  const auto flag = [&](const char* key) { return values.at(key).get<bool>(); };
  out.shard_ranks = static_cast<int>(std::clamp<int64_t>(size("mics_shard_size"), 0, INT32_MAX));
  out.hpz_partition_size =
      static_cast<int>(std::min<int64_t>(size("zero_hpz_partition_size"), INT32_MAX));
  out.quantized_weights = flag("zero_quantized_weights");
  out.quantized_frozen = flag("zero_quantized_nontrainable_weights");
  out.quantized_gradients = flag("zero_quantized_gradients");
  out.gather_by_node = flag("mics_hierarchical_params_gather");
  if (const Json& feedback = values.at("zeropp_loco_param"); !feedback.is_null()) {
    out.feedback = {feedback.at("err_beta").get<double>(), feedback.at("reset_T").get<int64_t>()};
  }
  return out;
}

TagValidation read_tag_validation(const ParsedObject& parsed) {
  const Json& value = parsed.at("/checkpoint/tag_validation");
  if (value == "Fail") return TagValidation::kFail;
  return value == "Ignore" ? TagValidation::kIgnore : TagValidation::kWarn;
}

}  // namespace

Config load_config(std::string_view json_text, const ConfigEnvironment& environment,
                   const ReadOptions& options) {
  CheckedConfig checked = check_config(json_text, environment, options);
  throw_first_problem(checked.parsed.problems, "configuration", Code::kConfig);
  Config out;
  out.parsed_ = std::move(checked.parsed);
  out.batch = checked.batch;
  const ParsedObject& parsed = out.parsed_;

  out.precision = read_precision(parsed);
  out.managed_accumulation = get<bool>(parsed, "/managed_gradient_accumulation");
  if (!parsed.at("/optimizer").is_null()) out.optimizer = read_optimizer(parsed);
  if (!parsed.at("/scheduler").is_null()) out.scheduler = read_scheduler(parsed);
  out.gradient_clipping = get<double>(parsed, "/gradient_clipping");
  out.eval_micro_batch = optional_at<int64_t>(parsed, "/eval_micro_batch_size_per_gpu");
  out.gradient_skip_norm = get<double>(parsed, "/gradient_skip_norm");
  out.max_consecutive_skips = get<int64_t>(parsed, "/max_consecutive_skips");
  out.seed = get<uint64_t>(parsed, "/seed");
  out.threads = get<int>(parsed, "/threads");
  out.thread_affinity = get<std::vector<int>>(parsed, "/thread_affinity");
  out.steps_per_print = optional_at<int64_t>(parsed, "/steps_per_print");
  out.dump_state = get<bool>(parsed, "/dump_state");
  out.wall_clock_breakdown = get<bool>(parsed, "/wall_clock_breakdown");
  out.memory_breakdown = get<bool>(parsed, "/memory_breakdown");
  out.graphs = get<bool>(parsed, "/graph_harvesting");
  out.cuda = read_cuda(parsed);
  out.dataloader_drop_last = get<bool>(parsed, "/dataloader_drop_last");
  out.dataloader_type = get<std::string>(parsed, "/dataloader_type");
  out.data_sharding = get<bool>(parsed, "/data_sharding");
  if (const Json& sizes = parsed.at("/rampup_batch_size"); !sizes.is_null()) {
    const auto size = [&](size_t i) { return sizes.at(i).get<int64_t>(); };
    out.batch_ramp_up = {size(0), size(1), size(2), out.batch.train_batch};
  }
  out.tensorboard = read_monitor(parsed, "/tensorboard");
  out.csv_monitor = read_monitor(parsed, "/csv_monitor");
  out.jsonl_monitor = read_monitor(parsed, "/jsonl_monitor");
  out.wandb = read_wandb(parsed);
  out.flops_profiler = read_flops_profiler(parsed);
  out.throughput = get<bool>(parsed, "/timers/throughput/enabled");
  out.activation_checkpointing = {
      get<bool>(parsed, "/activation_checkpointing/enabled"),
      optional_at<int64_t>(parsed, "/activation_checkpointing/number_checkpoints"),
      optional_at<int64_t>(parsed, "/activation_checkpointing/checkpoint_every_nth"),
      get<bool>(parsed, "/activation_checkpointing/cpu_checkpointing")};
  out.zero = read_zero(parsed);
  out.comms_logger = read_comms_logger(parsed);
  out.tag_validation = read_tag_validation(parsed);
  out.exclude_frozen_parameters = get<bool>(parsed, "/checkpoint/exclude_frozen_parameters");
  out.keep_checkpoints = optional_at<int64_t>(parsed, "/checkpoint/keep").value_or(0);
  out.background_save = get<bool>(parsed, "/checkpoint/writer/decoupled");
  return out;
}

}  // namespace ds
