#include "config/rules.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/text.h"
#include "config/missing_optimizer.h"

namespace ds {
namespace {

class Rules {
 public:
  Rules(ParsedObject& parsed, const ConfigEnvironment& environment, const ReadOptions& options)
      : parsed_(parsed), environment_(environment), options_(options) {}

  BatchConfig run() {
    for (const auto rule :
         {&Rules::precision, &Rules::zero, &Rules::zero_groups, &Rules::offload,
          &Rules::low_precision_masters, &Rules::optimizer, &Rules::zenflow, &Rules::scheduler,
          &Rules::communication, &Rules::accumulation, &Rules::activation_checkpointing,
          &Rules::data, &Rules::compression, &Rules::advice, &Rules::elasticity}) {
      unsure_ = false;
      (this->*rule)();
    }
    unsure_ = false;
    return batch();
  }

 private:
  // ---- access ----
  // What a rule says of a value that could not be read would be a guess.
  const Json& at(std::string_view path) const {
    unsure_ = unsure_ || parsed_.has_failed(path);
    return parsed_.at(path);
  }
  bool on(std::string_view path) const { return at(path) == true; }
  bool is(std::string_view path, std::string_view text) const {
    const Json& value = at(path);
    return value.is_string() && value.get_ref<const std::string&>() == text;
  }
  std::optional<int64_t> integer(std::string_view path) const {
    const Json& value = at(path);
    return value.is_null() ? std::nullopt : std::optional<int64_t>(value.get<int64_t>());
  }
  int64_t stage() const { return *integer("/zero_optimization/stage"); }

  template <class... Parts>
  void forbid(bool wrong, const char* path, const Parts&... parts) const {
    if (wrong && !unsure_) {
      parsed_.add(make_problem(ProblemKind::kError, path, str_cat(parts...)));
    }
  }
  template <class... Parts>
  void warn(const char* path, const Parts&... parts) {
    parsed_.warnings.push_back(str_cat("configuration: ", path, ": ", parts...));
  }

  // ---- precision ----
  std::string compute_type() const {
    if (on("/fp16/enabled")) return "fp16";
    return on("/bf16/enabled") ? "bf16" : "fp32";
  }

  void precision() {
    forbid(on("/fp8/enabled") && !on("/bf16/enabled"), "/fp8/enabled",
           "needs bf16: set /bf16/enabled to true");
    const Json& tile = at("/zero_optimization/stage3_tile_size");
    forbid(on("/fp8/enabled") && tile.is_number() && tile > 0, "/fp8/enabled",
           "multiplies whole weights, which /zero_optimization/stage3_tile_size gathers in parts; "
           "use 0 there");
    forbid(on("/fp16/enabled") && on("/bf16/enabled"), "/fp16/enabled",
           "fp16 and bf16 are both enabled; keep one");
    forbid(on("/amp/enabled") && stage() > 0, "/amp/enabled", "amp does not work with ZeRO stage ",
           stage(), "; use fp16 or bf16");
    forbid(is("/fp16/scaler", "wrapper") && stage() > 0, "/fp16/scaler",
           "\"wrapper\" is for stage 0; at ZeRO stage ", stage(), " use \"zero\"");
    const Json& scale = at("/fp16/loss_scale");
    if (on("/fp16/enabled") && scale == 0.0) {
      for (const char* path : {"/fp16/loss_scale_window", "/fp16/min_loss_scale"}) {
        forbid(*integer(path) <= 0, path, *integer(path),
               " must be above 0 when the loss scale is dynamic");
      }
    }
    const Json& param = at("/data_types/param_dtype");
    forbid(!param.is_null() && param != compute_type(), "/data_types/param_dtype",
           show_value(param), " contradicts the enabled precision ", compute_type());
    parsed_.derive("/data_types/param_dtype", compute_type());
    const bool rounded = (on("/bf16/enabled") && on("/bf16/bf16_master_weights_and_grads")) ||
                         (on("/fp16/enabled") && on("/fp16/fp16_master_weights_and_grads"));
    parsed_.derive("/data_types/grad_accum_dtype", rounded ? compute_type() : "fp32");
    // Published documents turn both on: operators compute in bf16 as it is.
    const Json& cast = at("/torch_autocast/dtype");
    if (rounded && on("/bf16/enabled") && (cast.is_null() || cast == "bf16")) {
      parsed_.derivable["/torch_autocast/enabled"] = true;
    }
    parsed_.derive("/communication_data_type", compute_type());
  }

  // ---- ZeRO ----
  void zero() {
    if (at("/gradient_clipping").is_null()) parsed_.values["gradient_clipping"] = 0.0;
    forbid(on("/zero_optimization/legacy_stage1"), "/zero_optimization/legacy_stage1",
           "the legacy stage 1 no longer exists; remove the key");
    parsed_.derive("/zero_optimization/overlap_comm", stage() == 3);
    if (on("/sparse_gradients") && stage() > 1) {
      warn("/sparse_gradients", "has no effect at ZeRO stage ", stage());
    }
    if (on("/zero_optimization/elastic_checkpoint") && stage() == 3) {
      warn("/zero_optimization/elastic_checkpoint",
           "is not needed: a checkpoint of any stage loads with any number of ranks");
    }
  }

  // ZeRO++ and MiCS.
  void zero_groups() {
    const auto key = [](std::string_view name) { return str_cat("/zero_optimization/", name); };
    const int64_t second = *integer(key("zero_hpz_partition_size"));
    const int64_t shard = *integer(key("mics_shard_size"));
    const bool feedback = !at(key("zeropp_loco_param")).is_null();
    const auto stage_three = [&](bool wanted, std::string_view name) {
      forbid(wanted && stage() != 3, key(name).c_str(), "needs ZeRO stage 3, not stage ", stage());
    };
    stage_three(second > 1, "zero_hpz_partition_size");
    stage_three(shard > 0, "mics_shard_size");
    for (const char* name : {"zero_quantized_weights", "zero_quantized_nontrainable_weights",
                             "zero_quantized_gradients"}) {
      stage_three(on(key(name)), name);
    }
    forbid(shard == 0, key("mics_shard_size").c_str(), "0 ranks hold nothing; use -1 for all");
    forbid(shard > 0 && second > 1, key("zero_hpz_partition_size").c_str(), second,
           " contradicts mics_shard_size ", shard, ", whose gathers are near already; keep one");
    forbid(shard <= 0 && on(key("mics_hierarchical_params_gather")),
           key("mics_hierarchical_params_gather").c_str(), "needs mics_shard_size");
    const bool quantized = on(key("zero_quantized_gradients"));
    forbid(quantized && !on(key("reduce_scatter")), key("zero_quantized_gradients").c_str(),
           "needs reduce_scatter true");
    forbid(feedback && !quantized, key("zeropp_loco_param").c_str(),
           "keeps what the rounding of gradients loses and needs zero_quantized_gradients true");
  }

  bool offloads(const std::string& object, std::string_view device = "") const {
    const Json& value = at("/zero_optimization/" + object + "/device");
    if (!value.is_string() || value == "none") return false;
    return device.empty() || value == device;
  }

  void offload() {
    if (offloads("offload_param") && stage() != 3 && !unsure_) {  // DeepSpeed passes over it
      warn("/zero_optimization/offload_param/device", "has no effect below ZeRO stage 3");
    }
    const Json& weights = at("/zero_optimization/offload_param/nvme_path");
    forbid(offloads("offload_param", "nvme") && stage() == 3 &&
               (!weights.is_string() || weights == ""),
           "/zero_optimization/offload_param/nvme_path",
           "device nvme needs the folder for the files");
    constexpr const char* kDevice = "/zero_optimization/offload_optimizer/device";
    forbid(offloads("offload_optimizer", "nvme") && stage() == 0, kDevice,
           "the optimizer is offloaded to files at ZeRO stages 1 to 3, not at stage 0");
    if (offloads("offload_optimizer", "cpu") && stage() == 0 && !unsure_) {
      warn(kDevice, "has no effect at ZeRO stage 0, where a model on a GPU is refused");
    }
    const Json& folder = at("/zero_optimization/offload_optimizer/nvme_path");
    forbid(offloads("offload_optimizer", "nvme") && (!folder.is_string() || folder == ""),
           "/zero_optimization/offload_optimizer/nvme_path",
           "device nvme needs the folder for the files");
  }

  // After the optimizer, which may be one that the rules have added.
  void zenflow() {
    constexpr const char* kPath = "/zero_optimization/zenflow";
    if (at(kPath).is_null()) return;
    const auto key = [&](std::string_view name) { return str_cat(kPath, "/", name); };
    forbid(stage() == 0, kPath, "needs ZeRO stage 1 to 3");
    forbid(!offloads("offload_optimizer"), kPath,
           "needs /zero_optimization/offload_optimizer/device \"cpu\" or \"nvme\"");
    const std::string steps = key("select_interval"), update = key("update_interval");
    const bool by_step = is(key("select_strategy"), "step");
    forbid(by_step && !at(steps).is_number(), steps.c_str(),
           "select_strategy \"step\" needs a number of steps");
    forbid(by_step && at(steps).is_number() && at(update).is_number() && at(steps) < at(update),
           steps.c_str(), show_value(at(steps)), " is below update_interval ",
           show_value(at(update)), ": columns are chosen anew after an update of all");
    const Json& type = at("/optimizer/type");
    forbid(type != "Adam" && type != "AdamW", kPath, "works with Adam and AdamW, not with ",
           show_value(type));
    forbid(at("/optimizer/params/amsgrad") == true, "/optimizer/params/amsgrad",
           "the maximum over all steps is not defined where zenflow leaves steps out; use false");
    forbid(is("/optimizer/state_dtype", "int8"), "/optimizer/state_dtype",
           "8-bit states share a scale over 256 elements, and zenflow updates columns; use "
           "\"fp32\" or \"bf16\"");
  }

  void low_precision_masters() {
    const bool partitioned = stage() >= 1;
    const bool cpu_update = offloads("offload_optimizer", "cpu");
    constexpr const char* kFp16 = "/fp16/fp16_master_weights_and_grads";
    if (on("/fp16/enabled") && on(kFp16)) {
      forbid(!partitioned, kFp16, "needs ZeRO stage 1 to 3");
      forbid(!cpu_update, kFp16, "needs /zero_optimization/offload_optimizer/device \"cpu\"");
    }
    constexpr const char* kBf16 = "/bf16/bf16_master_weights_and_grads";
    constexpr const char* kStates = "/bf16/bf16_optimizer_states";
    if (!on("/bf16/enabled")) return;
    if (on(kBf16)) {
      forbid(!partitioned, kBf16, "needs ZeRO stage 1 to 3");
      forbid(on("/bf16/split_master"), "/bf16/split_master",
             "true keeps masters whose bits bf16_master_weights_and_grads gives up; keep one");
      forbid(!on(kStates) && !cpu_update, kBf16,
             "needs bf16_optimizer_states or "
             "/zero_optimization/offload_optimizer/device \"cpu\"");
    }
  }

  // ---- optimizer, scheduler ----
  void optimizer() {
    if (at("/optimizer").is_null()) {
      if (!unsure_ && add_missing_optimizer(parsed_, options_)) state_type();
      return;
    }
    const std::string type = at("/optimizer/type").get<std::string>();
    const auto one_of = [&](std::initializer_list<const char*> names) {
      return std::any_of(names.begin(), names.end(), [&](const char* n) { return type == n; });
    };
    const Json& norm = at("/optimizer/params/max_grad_norm");
    forbid(norm.is_number() && norm > 0.0, "/optimizer/params/max_grad_norm",
           "clipping is not the optimizer's; set /gradient_clipping to ", show_value(norm));
    forbid(one_of({"OneBitAdam", "ZeroOneAdam", "OneBitLamb"}) && stage() > 0, "/optimizer/type",
           type, " does not work with ZeRO stage ", stage());
    forbid(one_of({"Lamb", "OneBitLamb"}) && on("/fp16/enabled") && at("/fp16/loss_scale") != 0.0,
           "/fp16/loss_scale", type, " needs a dynamic loss scale; use 0");
    forbid(stage() > 0 && !on("/zero_allow_untested_optimizer") &&
               !one_of({"Adam", "AdamW", "Lion", "Adagrad", "Muon"}),
           "/optimizer/type", type,
           " is untested with ZeRO; /zero_allow_untested_optimizer true permits it");
    const bool quantized = on("/zero_optimization/zero_quantized_gradients");
    forbid(type == "Muon" && stage() == 3 && (on("/zero_optimization/reduce_scatter") || quantized),
           "/optimizer/type",
           "Muon at ZeRO stage 3 needs reduce_scatter false and zero_quantized_gradients false");
    forbid(type == "Muon" && (stage() == 1 || stage() == 2) &&
               on("/zero_optimization/reduce_scatter") && offloads("offload_optimizer"),
           "/zero_optimization/reduce_scatter",
           "Muon with an offloaded optimizer needs reduce_scatter false");
    const Json& nesterov = at("/optimizer/params/nesterov");
    forbid(nesterov == true && (at("/optimizer/params/momentum") == 0.0 ||
                                at("/optimizer/params/dampening") != 0.0),
           "/optimizer/params/nesterov", "needs momentum above 0 and dampening 0");
    const Json& most = at("/optimizer/params/max_coeff");
    forbid(most.is_number() && at("/optimizer/params/min_coeff") > most,
           "/optimizer/params/min_coeff", show_value(at("/optimizer/params/min_coeff")),
           " is above max_coeff ", show_value(most));
    // PyTorch's AdamW decays by 0.01 where nobody says otherwise; DeepSpeed's own does not.
    const bool decoupled = type == "AdamW" || at("/optimizer/params/adam_w_mode") == true;
    if (at("/optimizer/params/torch_adam") == true && decoupled) {
      parsed_.derive("/optimizer/params/weight_decay", 0.01);
    }
    const bool cycles = at("/scheduler/params/cycle_momentum") == true;
    forbid(type == "NAdam" && cycles, "/scheduler/params/cycle_momentum",
           "NAdam's momentum has a schedule of its own; use false");
    base_shapes();
    state_type();
    parameter_groups(type);
    if (type == "AdamW" && at("/optimizer/params/adam_w_mode") == false) {
      warn("/optimizer/params/adam_w_mode",
           "has no effect with AdamW; use type Adam for L2 regularisation");
    }
  }

  void base_shapes() const {
    const Json& shapes = at("/optimizer/params/base_shapes");
    for (size_t i = 0; shapes.is_array() && i < shapes.size(); ++i) {
      forbid(shapes[i].at("shape").empty(),
             str_cat("/optimizer/params/base_shapes/", i, "/shape").c_str(),
             "give the sizes of the base model's parameter");
    }
  }

  // Rates are one for all parameters, or as many as there are groups.
  void rate_lists() const {
    const size_t groups = at("/optimizer").is_null() ? 1 : at("/optimizer/param_groups").size() + 1;
    for (const auto& [key, value] : at("/scheduler/params").items()) {
      forbid(value.is_array() && value.size() != groups && value.size() != 1,
             ("/scheduler/params/" + key).c_str(), "a list of ", value.size(), " rates for ",
             groups, groups == 1 ? " group of parameters" : " groups of parameters",
             ": one for the parameters of no group, then one for each of param_groups");
    }
  }

  void state_type() {
    constexpr const char* kPath = "/optimizer/state_dtype";
    const bool by_params = at("/optimizer/params/fp32_optimizer_states") == false;
    const bool by_bf16 = on("/bf16/enabled") && on("/bf16/bf16_optimizer_states");
    const Json& given = at(kPath);
    forbid((by_params || by_bf16) && !given.is_null() && given != "bf16", kPath, show_value(given),
           by_params ? " contradicts /optimizer/params/fp32_optimizer_states false"
                     : " contradicts /bf16/bf16_optimizer_states true",
           "; keep one");
    parsed_.derive(kPath, by_params || by_bf16 ? "bf16" : "fp32");
  }

  void parameter_groups(const std::string& type) const {
    const Json& groups = at("/optimizer/param_groups");
    const Json& params = at("/optimizer/params");
    std::set<std::string> names;
    for (size_t i = 0; i < groups.size(); ++i) {
      const std::string path = str_cat("/optimizer/param_groups/", i);
      const std::string name = groups[i].at("name").get<std::string>();
      forbid(name.empty(), (path + "/name").c_str(), "must not be empty");
      forbid(!names.insert(name).second, (path + "/name").c_str(), show_value(groups[i].at("name")),
             " names another group too");
      for (const auto& [key, value] : groups[i].items()) {
        if (key == "name" || key == "match" || value.is_null()) continue;
        forbid(!params.contains(key), (path + "/" + key).c_str(), type, " has no such parameter");
      }
      const Json& momentum = groups[i].at("momentum");
      forbid(type == "Muon" && momentum.is_number() && momentum >= 1.0,
             (path + "/momentum").c_str(), show_value(momentum), " must be below 1 with Muon");
      forbid(at("/optimizer/params/nesterov") == true && momentum == 0.0,
             (path + "/momentum").c_str(), "nesterov needs momentum above 0");
    }
  }

  void scheduler() {
    if (at("/scheduler").is_null()) return;
    rate_lists();
    const std::string type = at("/scheduler/type").get<std::string>();
    if (type == "OneCycle") {
      parsed_.derive("/scheduler/params/cycle_second_step_size",
                     at("/scheduler/params/cycle_first_step_size"));
      parsed_.derive("/scheduler/params/cycle_second_stair_count",
                     at("/scheduler/params/cycle_first_stair_count"));
    }
    const auto total = integer("/scheduler/params/total_num_steps");
    const auto warmup = integer("/scheduler/params/warmup_num_steps");
    if (total && warmup && *warmup > *total) {
      warn("/scheduler/params/warmup_num_steps", *warmup,
           " steps of warm-up exceed total_num_steps ", *total);
    }
  }

  // ---- engine ----
  void communication() {
    const int64_t shared = *integer("/sequence_parallel_size");
    forbid(environment_.world_size % shared != 0, "/sequence_parallel_size", shared,
           " does not divide the world size ", environment_.world_size);
    if (!is("/gradient_allreduce_op", "sum")) return;
    constexpr const char* kPath = "/gradient_allreduce_op";
    forbid(stage() == 3, kPath, "\"sum\" does not work with ZeRO stage 3; use \"mean\"");
    forbid(!at("/zero_optimization/zenflow").is_null(), kPath,
           "\"sum\" does not work with zenflow; use \"mean\"");
    forbid(on("/compile/deepcompile"), kPath,
           "\"sum\" does not work with deepcompile; use \"mean\"");
  }

  void accumulation() {
    if (on("/managed_gradient_accumulation")) return;
    constexpr const char* kPath = "/managed_gradient_accumulation";
    forbid(on("/amp/enabled"), kPath, "false does not work with amp");
    forbid(on("/compile/deepcompile"), kPath, "false does not work with deepcompile");
    forbid(on("/zero_optimization/overlap_comm") && stage() < 2, kPath,
           "false with overlap_comm needs ZeRO stage 2 or 3, not stage ", stage());
  }

  void activation_checkpointing() {
    constexpr const char* kPath = "/activation_checkpointing/contiguous_memory_optimization";
    const Json& segments = at("/activation_checkpointing/number_checkpoints");
    if (on(kPath) && on("/activation_checkpointing/enabled")) {
      forbid(!on("/activation_checkpointing/partition_activations"), kPath,
             "needs partition_activations true");
      forbid(segments.is_null(), kPath, "needs number_checkpoints");
    }
    const bool every = !at("/activation_checkpointing/checkpoint_every_nth").is_null();
    forbid(every && !segments.is_null(), "/activation_checkpointing/checkpoint_every_nth",
           "does not work with number_checkpoints: either groups of all blocks are recomputed, or "
           "single ones");
    if (on("/activation_checkpointing/enabled")) {
      if (on("/activation_checkpointing/partition_activations")) {
        warn("/activation_checkpointing/partition_activations",
             "has no effect: there are no model-parallel ranks to share kept inputs with");
      }
      if (on(kPath)) warn(kPath, "has no effect: the arena keeps inputs together without a copy");
    }
    if (!on("/activation_checkpointing/enabled")) {
      constexpr const char* kIdle = "has no effect until /activation_checkpointing/enabled is true";
      if (!segments.is_null()) warn("/activation_checkpointing/number_checkpoints", kIdle);
      if (every) warn("/activation_checkpointing/checkpoint_every_nth", kIdle);
      if (on("/activation_checkpointing/cpu_checkpointing")) {
        warn("/activation_checkpointing/cpu_checkpointing", kIdle);
      }
      if (on("/activation_checkpointing/nvme_checkpointing")) {
        warn("/activation_checkpointing/nvme_checkpointing", kIdle);
      }
    }
    const Json& folder = at("/activation_checkpointing/nvme_path");
    forbid(on("/activation_checkpointing/enabled") &&
               on("/activation_checkpointing/nvme_checkpointing") &&
               (!folder.is_string() || folder == ""),
           "/activation_checkpointing/nvme_path",
           "nvme_checkpointing needs the folder for the files");
    if (on("/flops_profiler/enabled")) parsed_.derive("/wall_clock_breakdown", true);
  }

  void data() {
    discrete_schedule("/curriculum_learning");
    const Json& metrics =
        at("/data_efficiency/data_sampling/curriculum_learning/curriculum_metrics");
    for (const auto& [name, metric] : metrics.items()) {
      discrete_schedule("/data_efficiency/data_sampling/curriculum_learning/curriculum_metrics/" +
                        pointer_token(name));
    }
  }

  void discrete_schedule(const std::string& section) const {
    const std::string path = section + "/schedule_config/";
    const Json& low = at(section + "/min_difficulty");
    const Json& high = at(section + "/max_difficulty");
    forbid(low.is_number() && high.is_number() && low > high, (section + "/min_difficulty").c_str(),
           show_value(low), " is above max_difficulty ", show_value(high));
    if (is(section + "/schedule_type", "fixed_discrete")) {
      const Json& difficulty = at(path + "difficulty");
      const Json& steps = at(path + "max_step");
      forbid(!difficulty.is_array(), (path + "difficulty").c_str(),
             "missing; fixed_discrete needs a list");
      forbid(!steps.is_array() || steps.size() + 1 != difficulty.size(),
             (path + "max_step").c_str(), "must have one item less than difficulty, which has ",
             difficulty.size());
    } else if (is(section + "/schedule_type", "fixed_linear") ||
               is(section + "/schedule_type", "fixed_root")) {
      for (const char* name : {"total_curriculum_step", "difficulty_step"}) {
        forbid(at(path + name).is_null(), (path + name).c_str(), "missing; ",
               at(section + "/schedule_type").get_ref<const std::string&>(), " needs it");
      }
      forbid(is(section + "/schedule_type", "fixed_root") && at(path + "root_degree").is_null(),
             (path + "root_degree").c_str(), "missing; fixed_root needs it");
    }
  }

  void layer_reduction() {
    const std::string base = "/compression_training/layer_reduction/";
    if (!on(base + "enabled")) return;
    const Json& layers = at(base + "teacher_layer");
    const bool given = layers.is_array() && !layers.empty();
    forbid(!given, (base + "teacher_layer").c_str(),
           "missing; name the teacher's layer for each layer of the student");
    const auto keep = integer(base + "keep_number_layer");
    forbid(given && keep && *keep != std::ssize(layers), (base + "keep_number_layer").c_str(),
           *keep, " layers are to be kept, and teacher_layer names ", layers.size());
  }

  void compression() {
    layer_reduction();
    constexpr const char* kEnd =
        "/compression_training/sparse_pruning/shared_parameters/schedule_offset_end";
    const auto begin =
        integer("/compression_training/sparse_pruning/shared_parameters/schedule_offset");
    const auto end = integer(kEnd);
    forbid(end && *end < *begin, kEnd, *end, " is before schedule_offset ", *begin);
    parsed_.derive(kEnd, *begin);
    for (const char* method : {"weight_quantization", "activation_quantization", "sparse_pruning",
                               "row_pruning", "head_pruning", "channel_pruning"}) {
      const std::string base = str_cat("/compression_training/", method);
      const bool by_group = !is(base + "/shared_parameters/method", "snip_momentum");
      forbid(on(base + "/shared_parameters/enabled") && by_group &&
                 at(base + "/different_groups").empty(),
             (base + "/different_groups").c_str(), "missing; an enabled method needs groups");
    }
  }

  void advice() {
    const auto words = integer("/vocabulary_size");
    if (words && *words % 8 != 0) {
      warn("/vocabulary_size", *words, " is no multiple of 8, which slows matrix products down");
    }
  }

  // ---- batch sizes ----
  void elasticity() {
    if (!on("/elasticity/enabled")) return;
    const double version = at("/elasticity/version").get<double>();
    const int64_t model_parallel = *integer("/elasticity/model_parallel_size");
    forbid(model_parallel > 1 && version < 0.2, "/elasticity/model_parallel_size", model_parallel,
           " needs version 0.2");
    forbid(*integer("/elasticity/num_gpus_per_node") % model_parallel != 0,
           "/elasticity/model_parallel_size", model_parallel, " does not divide num_gpus_per_node ",
           *integer("/elasticity/num_gpus_per_node"));
    forbid(*integer("/elasticity/min_gpus") > *integer("/elasticity/max_gpus"),
           "/elasticity/min_gpus", *integer("/elasticity/min_gpus"), " is above max_gpus ",
           *integer("/elasticity/max_gpus"));
    if (on("/elasticity/ignore_non_elastic_batch_info")) return;
    for (const char* path :
         {"/train_batch_size", "/train_micro_batch_size_per_gpu", "/gradient_accumulation_steps"}) {
      forbid(!at(path).is_null(), path,
             "elasticity chooses the batch sizes; remove the key or set "
             "/elasticity/ignore_non_elastic_batch_info");
    }
  }

  // The world that all three sizes fit, when they are given and fit one.
  std::optional<int64_t> fitting_world() const {
    const auto train = integer("/train_batch_size");
    const auto micro = integer("/train_micro_batch_size_per_gpu");
    const auto accumulation = integer("/gradient_accumulation_steps");
    if (!train || !micro || !accumulation) return std::nullopt;
    return world_of_batch(*train, *micro, *accumulation);
  }

  BatchConfig batch() {
    if (on("/elasticity/enabled") || unsure_) return {};
    int64_t ranks = environment_.data_parallel_size;
    if (environment_.fit_world) ranks = fitting_world().value_or(ranks);
    BatchConfig out;
    try {
      const auto train = integer("/train_batch_size");
      const auto micro = integer("/train_micro_batch_size_per_gpu");
      const auto accumulation = integer("/gradient_accumulation_steps");
      if (unsure_) return {};
      out = resolve_batch(train, micro, accumulation, ranks);
    } catch (const Error& error) {
      if (error.code() != Code::kConfig) throw;
      std::string text = error.message();
      if (constexpr std::string_view kWhat = "configuration: "; text.rfind(kWhat, 0) == 0) {
        text.erase(0, kWhat.size());
      }
      parsed_.add(make_problem(ProblemKind::kError, "", text));
      return {};
    }
    parsed_.derive("/train_batch_size", out.train_batch);
    parsed_.derive("/train_micro_batch_size_per_gpu", out.micro_batch);
    parsed_.derive("/gradient_accumulation_steps", out.accumulation);
    ramp_up(out);
    return out;
  }

  void ramp_up(const BatchConfig& batch) const {
    constexpr const char* kPath = "/rampup_batch_size";
    const Json& sizes = at(kPath);
    if (unsure_ || sizes.is_null()) return;
    const auto size = [&](size_t i) { return sizes.at(i).get<int64_t>(); };
    const std::string problem =
        ramp_up_problem({size(0), size(1), size(2), batch.train_batch}, batch);
    forbid(!problem.empty(), kPath, problem);
    forbid(!on("/managed_gradient_accumulation"), kPath,
           "sets how many micro batches a step has, and with managed_gradient_accumulation false "
           "the caller does; remove one of them");
  }

  ParsedObject& parsed_;
  const ConfigEnvironment& environment_;
  const ReadOptions& options_;
  mutable bool unsure_ = false;  // the rule looked at a value that could not be read
};

}  // namespace

BatchConfig apply_config_rules(ParsedObject& parsed, const ConfigEnvironment& environment,
                               const ReadOptions& options) {
  DS_CHECK(environment.world_size >= 1 && environment.data_parallel_size >= 1,
           Code::kInvalidArgument, "world size ", environment.world_size,
           " and data-parallel size ", environment.data_parallel_size, " must be positive");
  return Rules(parsed, environment, options).run();
}

}  // namespace ds
