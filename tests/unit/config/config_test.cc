// load_config: defaults, typed values, origins, aliases, deprecated keys, "auto".
#include "config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ds {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Config load(const std::string& more, int64_t ranks = 1) {
  const bool has_optimizer = more.find("\"optimizer\":") != std::string::npos;
  return load_config(std::string("{\"train_batch_size\": 8") +
                         (has_optimizer ? "" : ", \"optimizer\": {\"type\": \"AdamW\"}") +
                         (more.empty() ? "" : ", " + more) + "}",
                     {ranks, ranks});
}

std::string error_of(const std::string& more) {
  try {
    load(more);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kConfig);
    return error.message();
  }
  return "accepted";
}

TEST(Config, Defaults) {
  const Config config = load_config(R"({"train_batch_size": 8})");
  EXPECT_EQ(config.batch.train_batch, 8);
  EXPECT_EQ(config.batch.micro_batch, 8);
  EXPECT_EQ(config.batch.accumulation, 1);
  EXPECT_EQ(config.precision.compute, Precision::kFp32);
  EXPECT_TRUE(config.precision.check_grad_overflow);
  EXPECT_FALSE(config.scheduler);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.seed, 1234u);
  EXPECT_EQ(config.threads, 0);
  EXPECT_FALSE(config.steps_per_print);
  EXPECT_FALSE(config.dump_state || config.wall_clock_breakdown || config.memory_breakdown ||
               config.dataloader_drop_last);
  for (const MonitorConfig* monitor :
       {&config.tensorboard, &config.csv_monitor, &config.jsonl_monitor}) {
    EXPECT_FALSE(monitor->enabled);
    EXPECT_EQ(monitor->output_path, "");
    EXPECT_EQ(monitor->job_name, "DeepSpeedJobName");
  }
  EXPECT_FALSE(config.activation_checkpointing.enabled);
  EXPECT_FALSE(config.activation_checkpointing.number_checkpoints);
  EXPECT_FALSE(config.activation_checkpointing.cpu_checkpointing);
  EXPECT_EQ(config.checkpoint.tag_validation, TagValidation::kWarn);
  // What trains is told, and shown where people look for it.
  EXPECT_EQ(config.optimizer.value().type, OptimizerType::kAdamW);
  EXPECT_EQ(config.optimizer.value().lr, 1e-3);
  EXPECT_EQ(config.resolved().at("optimizer").at("params").at("lr"), 1e-3);
  EXPECT_EQ(config.origins().at("/optimizer/params/lr"), "default");
  EXPECT_THAT(config.warnings(), ElementsAre("configuration: /optimizer: missing; AdamW with lr "
                                             "0.001 trains"));
}

// Values of the reference, read from the resolved document.
TEST(Config, DefaultsOfSectionsThatThisBuildOnlyChecks) {
  const Config config = load("");
  const struct {
    const char* path;
    Json value;
  } rows[] = {
      {"/fp16/initial_scale_power", 16},
      {"/fp16/loss_scale", 0.0},
      {"/fp16/loss_scale_window", 1000},
      {"/fp16/hysteresis", 2},
      {"/fp16/min_loss_scale", 1},
      {"/zero_optimization/stage", 0},
      {"/zero_optimization/reduce_bucket_size", 500000000},
      {"/zero_optimization/allgather_bucket_size", 500000000},
      {"/zero_optimization/overlap_comm", false},
      {"/zero_optimization/sub_group_size", 1000000000},
      {"/zero_optimization/stage3_prefetch_bucket_size", 50000000},
      {"/zero_optimization/stage3_param_persistence_threshold", 100000},
      {"/zero_optimization/stage3_model_persistence_threshold", INT64_MAX},
      {"/zero_optimization/offload_param", nullptr},
      {"/aio/block_size", 1048576},
      {"/aio/queue_depth", 8},
      {"/wandb/project", "deepspeed"},
      {"/comet/samples_log_interval", 100},
      {"/checkpoint/writer/io_buffer_size", 67108864},
      {"/elasticity/version", 0.2},
      {"/autotuning/tuner_num_trials", 50},
      {"/data_efficiency/data_sampling/num_epochs", 1000},
      {"/progressive_layer_drop/gamma", 0.001},
      {"/compression_training/activation_quantization/shared_parameters/schedule_offset", 1000},
      {"/quantize_training/eigenvalue/layer_name", "bert.encoder.layer"},
      {"/pipeline/stages", "auto"},
      {"/hybrid_engine/max_out_tokens", 512},
      {"/compile/free_activation_threshold", 10485760},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(config.resolved().at(Json::json_pointer(row.path)), row.value) << row.path;
  }
}

TEST(Config, TypedValues) {
  const Config config = load_config(R"({
    // one process, eight samples per step
    "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
    "gradient_clipping": 0, "steps_per_print": 1e1, "seed": 7, "threads": 2,
    "dump_state": true, "wall_clock_breakdown": true, "memory_breakdown": true,
    "dataloader_drop_last": true,
    "bf16": {"enabled": true, "check_grad_overflow": false},
    "optimizer": {"type": "ADAM", "params": {"lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-6,
                  "weight_decay": 0.1, "bias_correction": false, "adam_w_mode": false}},
    "csv_monitor": {"enabled": true, "output_path": "out", "job_name": "run"},
    "activation_checkpointing": {"enabled": true, "number_checkpoints": 3,
                                 "cpu_checkpointing": true},
    "checkpoint": {"tag_validation": "FAIL"}
  })");
  EXPECT_EQ(config.batch.train_batch, 8);
  EXPECT_EQ(config.batch.accumulation, 2);
  EXPECT_EQ(config.gradient_clipping, 0.0);
  EXPECT_EQ(config.steps_per_print, 10);
  EXPECT_EQ(config.seed, 7u);
  EXPECT_EQ(config.threads, 2);
  EXPECT_TRUE(config.dump_state && config.wall_clock_breakdown && config.memory_breakdown &&
              config.dataloader_drop_last);
  EXPECT_EQ(config.precision.compute, Precision::kBf16);
  EXPECT_FALSE(config.precision.check_grad_overflow);
  ASSERT_TRUE(config.optimizer);
  EXPECT_EQ(config.optimizer->type, OptimizerType::kAdam);
  EXPECT_EQ(config.optimizer->lr, 3e-4);
  EXPECT_EQ(config.optimizer->beta1, 0.8);
  EXPECT_EQ(config.optimizer->beta2, 0.95);
  EXPECT_EQ(config.optimizer->eps, 1e-6);
  EXPECT_EQ(config.optimizer->weight_decay, 0.1);
  EXPECT_FALSE(config.optimizer->decoupled || config.optimizer->bias_correction);
  EXPECT_TRUE(config.csv_monitor.enabled);
  EXPECT_EQ(config.csv_monitor.output_path, "out");
  EXPECT_EQ(config.csv_monitor.job_name, "run");
  EXPECT_TRUE(config.activation_checkpointing.enabled);
  EXPECT_EQ(config.activation_checkpointing.number_checkpoints, 3);
  EXPECT_TRUE(config.activation_checkpointing.cpu_checkpointing);
  EXPECT_EQ(config.checkpoint.tag_validation, TagValidation::kFail);
}

TEST(Config, AdamIsDecoupledUnlessToldOtherwise) {
  const auto decoupled = [](const std::string& optimizer) {
    return load("\"optimizer\": " + optimizer).optimizer->decoupled;
  };
  EXPECT_TRUE(decoupled(R"({"type": "Adam"})"));
  EXPECT_TRUE(decoupled(R"({"type": "Adam", "params": {"adam_w_mode": true}})"));
  EXPECT_FALSE(decoupled(R"({"type": "Adam", "params": {"adam_w_mode": false}})"));
  EXPECT_TRUE(decoupled(R"({"type": "adamw"})"));
  EXPECT_TRUE(decoupled(R"({"type": "adamw", "params": {"adam_w_mode": false}})"));
}

OptimizerConfig optimizer(const std::string& json, const std::string& more = "") {
  return load("\"optimizer\": " + json + more).optimizer.value();
}

TEST(Config, DefaultsOfEveryOptimizer) {
  const OptimizerConfig adagrad = optimizer(R"({"type": "adagrad"})");
  EXPECT_EQ(adagrad.type, OptimizerType::kAdagrad);
  EXPECT_EQ(adagrad.lr, 1e-2);
  EXPECT_EQ(adagrad.eps, 1e-10);
  const OptimizerConfig rmsprop = optimizer(R"({"type": "RMSprop"})");
  EXPECT_EQ(rmsprop.type, OptimizerType::kRmsprop);
  EXPECT_EQ(rmsprop.lr, 1e-2);
  EXPECT_EQ(rmsprop.beta2, 0.99);
  EXPECT_EQ(rmsprop.momentum, 0);
  EXPECT_FALSE(rmsprop.centered);
  const OptimizerConfig nadam = optimizer(R"({"type": "NAdam"})");
  EXPECT_EQ(nadam.lr, 2e-3);
  EXPECT_EQ(nadam.momentum_decay, 4e-3);
  EXPECT_FALSE(nadam.decoupled);
  const OptimizerConfig mu = optimizer(R"({"type": "MuAdam", "params": {"base_shapes": [
      {"match": "a", "shape": [2, null]}]}})");
  EXPECT_EQ(mu.type, OptimizerType::kAdam);
  EXPECT_EQ(mu.mu, MuRule::kAdam);
  EXPECT_FALSE(mu.decoupled);
  EXPECT_EQ(mu.base_shapes.at(0).shape, (std::vector<int64_t>{2, 0}));
  const OptimizerConfig lion = optimizer(R"({"type": "Lion"})");
  EXPECT_EQ(lion.type, OptimizerType::kLion);
  EXPECT_EQ(lion.lr, 1e-3);
  EXPECT_EQ(lion.beta2, 0.999);
  const OptimizerConfig lamb = optimizer(R"({"type": "LAMB", "params": {"max_coeff": 3}})");
  EXPECT_EQ(lamb.type, OptimizerType::kLamb);
  EXPECT_EQ(lamb.max_coeff, 3);
  EXPECT_EQ(lamb.min_coeff, 0.01);
  EXPECT_TRUE(lamb.bias_correction);
  EXPECT_FALSE(lamb.eps_inside_sqrt);
  const OptimizerConfig sgd =
      optimizer(R"({"type": "sgd", "params": {"momentum": 0.9, "nesterov": true}})");
  EXPECT_EQ(sgd.type, OptimizerType::kSgd);
  EXPECT_EQ(sgd.lr, 1e-3);
  EXPECT_EQ(sgd.momentum, 0.9);
  EXPECT_EQ(sgd.dampening, 0);
  EXPECT_TRUE(sgd.nesterov);
}

TEST(Config, MuonHasTwoRates) {
  const OptimizerConfig plain = optimizer(R"({"type": "Muon"})");
  EXPECT_EQ(plain.lr, 0.02);
  EXPECT_EQ(plain.adam_lr, 3e-4);
  EXPECT_EQ(plain.momentum, 0.95);
  EXPECT_EQ(plain.beta2, 0.95);
  EXPECT_EQ(plain.eps, 1e-10);
  EXPECT_EQ(plain.ns_method, MuonMethod::kGram);
  const OptimizerConfig both = optimizer(R"({"type": "Muon", "params": {"lr": 0.1}})");
  EXPECT_EQ(both.lr, 0.1);
  EXPECT_EQ(both.adam_lr, 0.1);
  const OptimizerConfig own = optimizer(
      R"({"type": "Muon", "params": {"lr": 0.1, "muon_lr": 0.2, "adam_lr": 0.3,
          "ns_method": "standard"}})");
  EXPECT_EQ(own.lr, 0.2);
  EXPECT_EQ(own.adam_lr, 0.3);
  EXPECT_EQ(own.ns_method, MuonMethod::kStandard);
}

TEST(Config, OptimizerStateTypes) {
  const std::string bf16 = R"(, "bf16": {"enabled": true, "bf16_optimizer_states": true})";
  EXPECT_EQ(optimizer(R"({"type": "Adam"})").state_dtype, OptimizerStateType::kFp32);
  EXPECT_EQ(optimizer(R"({"type": "Adam"})", bf16).state_dtype, OptimizerStateType::kBf16);
  EXPECT_EQ(optimizer(R"({"type": "Lion", "state_dtype": "bf16"})", bf16).state_dtype,
            OptimizerStateType::kBf16);
  EXPECT_EQ(optimizer(R"({"type": "Lion", "state_dtype": "int8"})").state_dtype,
            OptimizerStateType::kInt8);
  EXPECT_EQ(
      optimizer(R"({"type": "Adam", "params": {"fp32_optimizer_states": false}})").state_dtype,
      OptimizerStateType::kBf16);
}

TEST(Config, ParameterGroups) {
  const OptimizerConfig config = optimizer(
      R"({"type": "AdamW", "param_groups": [
          {"name": "slow", "match": ["wte*", "wpe*"], "lr": 1e-5, "weight_decay": 0},
          {"name": "head", "match": "lm_head.?", "betas": [0.5, 0.6], "eps": 1e-3}]})");
  ASSERT_EQ(config.param_groups.size(), 2u);
  EXPECT_EQ(config.param_groups[0].name, "slow");
  EXPECT_EQ(config.param_groups[0].match, (std::vector<std::string>{"wte*", "wpe*"}));
  EXPECT_EQ(config.param_groups[0].lr, 1e-5);
  EXPECT_EQ(config.param_groups[0].weight_decay, 0);
  EXPECT_FALSE(config.param_groups[0].beta1 || config.param_groups[0].eps ||
               config.param_groups[0].momentum);
  EXPECT_EQ(config.param_groups[1].match, std::vector<std::string>{"lm_head.?"});
  EXPECT_EQ(config.param_groups[1].beta1, 0.5);
  EXPECT_EQ(config.param_groups[1].beta2, 0.6);
  EXPECT_EQ(config.param_groups[1].eps, 1e-3);
  EXPECT_FALSE(config.param_groups[1].lr);
}

TEST(Config, TypesOfGradientsAndMasters) {
  const Config config = load(
      R"("bf16": {"enabled": true, "split_master": true},
          "data_types": {"grad_accum_dtype": "bfloat16"})");
  EXPECT_TRUE(config.precision.split_master);
  EXPECT_EQ(config.precision.grad_accum_dtype, Precision::kBf16);
  EXPECT_EQ(config.precision.communication_data_type, Precision::kBf16);
  const Config plain = load(R"("bf16": {"split_master": true})");
  EXPECT_FALSE(plain.precision.split_master);
  EXPECT_EQ(plain.precision.grad_accum_dtype, Precision::kFp32);
  EXPECT_EQ(load(R"("fp16": {"enabled": true}, "data_types": {"grad_accum_dtype": "half"})")
                .precision.grad_accum_dtype,
            Precision::kFp16);
}

template <class T>
T schedule(const std::string& json) {
  return std::get<T>(load("\"scheduler\": " + json).scheduler.value());
}

TEST(Config, Schedules) {
  const auto range = schedule<LrRangeTestConfig>(
      R"({"type": "LRRangeTest", "params": {"lr_range_test_staircase": true}})");
  EXPECT_EQ(range.lr_range_test_min_lr.of(0), 1e-3);
  EXPECT_EQ(range.lr_range_test_step_size, 2000);
  EXPECT_EQ(range.lr_range_test_step_rate, 1.0);
  EXPECT_TRUE(range.lr_range_test_staircase);

  const auto warmup = schedule<WarmupLrConfig>(R"({"type": "WarmupLR"})");
  EXPECT_EQ(warmup.warmup_min_lr.of(0), 0.0);
  EXPECT_FALSE(warmup.warmup_max_lr);
  EXPECT_EQ(warmup.warmup_num_steps, 1000);
  EXPECT_EQ(warmup.warmup_type, WarmupShape::kLog);

  const auto decay = schedule<WarmupDecayLrConfig>(
      R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 50, "warmup_type": "linear"}})");
  EXPECT_EQ(decay.total_num_steps, 50);
  EXPECT_EQ(decay.warmup_max_lr.value().of(0), 0.001);
  EXPECT_EQ(decay.warmup_type, WarmupShape::kLinear);

  const auto cosine = schedule<WarmupCosineLrConfig>(
      R"({"type": "WarmupCosineLR", "params": {"total_num_steps": 50, "warmup_num_steps": 5}})");
  EXPECT_EQ(cosine.total_num_steps, 50);
  EXPECT_EQ(cosine.warmup_num_steps, 5);
  EXPECT_EQ(cosine.warmup_min_ratio, 0.0);
  EXPECT_EQ(cosine.cos_min_ratio, 1e-4);

  const auto cycle = schedule<OneCycleConfig>(
      R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2,
          "cycle_first_step_size": 10, "cycle_first_stair_count": 5}})");
  EXPECT_EQ(cycle.cycle_min_lr.of(0), 0.1);
  EXPECT_EQ(cycle.cycle_max_lr.of(0), 0.2);
  EXPECT_EQ(cycle.cycle_second_step_size, 10);
  EXPECT_EQ(cycle.cycle_second_stair_count, 5);
  EXPECT_TRUE(cycle.cycle_momentum);
  EXPECT_EQ(cycle.cycle_min_mom, 0.8);
  EXPECT_EQ(cycle.cycle_max_mom, 0.9);
  EXPECT_EQ(schedule<OneCycleConfig>(
                R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2,
                    "cycle_second_step_size": 0}})")
                .cycle_second_step_size,
            0);
}

TEST(Config, Origins) {
  const Config config = load(
      R"("gradient_clipping": 0.5, "fp16": {"loss_scale": "3"},
         "zero_optimization": {"stage": 0, "stage3_gather_fp16_weights_on_model_save": true})");
  const auto& origins = config.origins();
  EXPECT_EQ(origins.at("/train_batch_size"), "given");
  EXPECT_EQ(origins.at("/train_micro_batch_size_per_gpu"), "derived");
  EXPECT_EQ(origins.at("/gradient_accumulation_steps"), "derived");
  EXPECT_EQ(origins.at("/gradient_clipping"), "given");
  EXPECT_EQ(origins.at("/seed"), "default");
  EXPECT_EQ(origins.at("/fp16/loss_scale"), "given");
  EXPECT_EQ(origins.at("/fp16/hysteresis"), "default");
  EXPECT_EQ(origins.at("/data_types/grad_accum_dtype"), "derived");
  EXPECT_EQ(origins.at("/optimizer/type"), "given");
  EXPECT_EQ(origins.at("/optimizer/params/lr"), "default");
  EXPECT_EQ(origins.at("/zero_optimization/stage3_gather_16bit_weights_on_model_save"),
            "deprecated:/zero_optimization/stage3_gather_fp16_weights_on_model_save");
  EXPECT_THAT(config.warnings(),
              ElementsAre(HasSubstr("/zero_optimization/stage3_gather_16bit_weights")));
}

// Every leaf of the resolved document has an origin, and every origin a leaf.
void count_leaves(const Json& value, const std::string& path,
                  const std::map<std::string, std::string>& origins, size_t& leaves) {
  if (origins.count(path)) {
    ++leaves;
    EXPECT_TRUE(!value.is_object() || value.empty()) << path;
    return;
  }
  ASSERT_TRUE(value.is_object()) << path << " has no origin";
  for (const auto& [name, item] : value.items()) {
    count_leaves(item, path + "/" + pointer_token(name), origins, leaves);
  }
}

TEST(Config, OriginsCoverTheDocument) {
  const Config config = load(
      R"("amp": {"enabled": false, "opt_level": "O1"}, "optimizer": {"type": "AdamW"},
         "compression_training": {"row_pruning": {"different_groups":
            {"a/b": {"params": {"dense_ratio": 0.5}}}}},
         "zero_optimization": {"offload_param": {}},
         "tensor_parallel": {"partition_config": {"layer_specs":
            [{"patterns": ["q"], "partition_type": "row"}]}})");
  size_t leaves = 0;
  count_leaves(config.resolved(), "", config.origins(), leaves);
  EXPECT_EQ(leaves, config.origins().size());
  EXPECT_EQ(config.origins().at("/amp/opt_level"), "given");
  EXPECT_EQ(config.origins().at("/compression_training/row_pruning/different_groups/a~1b/params/"
                                "dense_ratio"),
            "given");
}

TEST(Config, ResolvedDocumentResolvesToItself) {
  for (const char* more :
       {"", R"("bf16": {"enabled": true}, "optimizer": {"type": "Adam"})",
        R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1}})",
        R"("scheduler": {"type": "WarmupLR"}, "zero_optimization": {"offload_optimizer": {}})"}) {
    const Config first = load(more);
    const Config second = load_config(dump_json(first.resolved()));
    EXPECT_EQ(dump_json(first.resolved()), dump_json(second.resolved()));
    EXPECT_THAT(second.warnings(), IsEmpty());
  }
}

TEST(Config, AliasesAndSpellings) {
  EXPECT_EQ(load(R"("bfloat16": {"enabled": true})").precision.compute, Precision::kBf16);
  const Config config = load(
      R"("zero_optimization": {"prefetch_bucket_size": 5e7, "sub_group_size": 1e9},
         "data_types": {"grad_accum_dtype": "float32"}, "communication_data_type": "FP32",
         "gradient_allreduce_op": "Sum")");
  const Json& resolved = config.resolved();
  EXPECT_EQ(resolved["zero_optimization"]["stage3_prefetch_bucket_size"], 50000000);
  EXPECT_TRUE(resolved["zero_optimization"]["sub_group_size"].is_number_integer());
  EXPECT_EQ(resolved["data_types"]["grad_accum_dtype"], "fp32");
  EXPECT_EQ(resolved["communication_data_type"], "fp32");
  EXPECT_EQ(resolved["gradient_allreduce_op"], "sum");
}

TEST(Config, DeprecatedForms) {
  const Config config =
      load(R"("zero_optimization": {"cpu_offload": false, "cpu_offload_use_pin_memory": true})");
  EXPECT_EQ(config.warnings().size(), 2u);
  EXPECT_TRUE(config.resolved()["zero_optimization"]["offload_optimizer"].is_null());
  const Config off = load(R"("zero_optimization": false)");
  EXPECT_EQ(off.origins().at("/zero_optimization/stage"), "deprecated:/zero_optimization");
  EXPECT_EQ(off.warnings().size(), 1u);
  EXPECT_EQ(load(R"("zero_optimization": true)").zero.stage, 1);
  EXPECT_TRUE(load(R"("zero_optimization": {"stage": 2, "cpu_offload": true})")
                  .zero.offload_optimizer.has_value());
  EXPECT_EQ(error_of(R"("zero_optimization": {"stage": 3, "cpu_offload_param": true})"),
            "accepted");
  EXPECT_EQ(load(R"("zero_optimization": {"stage": 3, "cpu_offload_param": true})")
                .zero.offload_param->device,
            ZeroConfig::ParamOffload::Device::kCpu);
}

TEST(Config, ParamOffload) {
  const ZeroConfig zero =
      load(R"("zero_optimization": {"stage": 3, "offload_param": {"device": "nvme",
              "nvme_path": "/x", "buffer_count": 7, "buffer_size": 1e6, "max_in_cpu": 5}})")
          .zero;
  ASSERT_TRUE(zero.offload_param && zero.offload_param->in_files());
  EXPECT_EQ(zero.offload_param->nvme_path, "/x");
  EXPECT_EQ(zero.offload_param->buffer_count, 7);
  EXPECT_EQ(zero.offload_param->buffer_size, 1'000'000);
  EXPECT_EQ(zero.offload_param->max_in_cpu, 5);
}

TEST(Config, OptimizerOffload) {
  const ZeroConfig zero =
      load(R"("zero_optimization": {"stage": 1, "sub_group_size": 5e6, "offload_optimizer":
              {"device": "cpu", "pin_memory": false, "buffer_count": 7}})")
          .zero;
  ASSERT_TRUE(zero.offload_optimizer);
  EXPECT_FALSE(zero.offload_optimizer->pin_memory);
  EXPECT_EQ(zero.offload_optimizer->buffer_count, 7);
  EXPECT_EQ(zero.sub_group_size, 5'000'000);
  EXPECT_TRUE(load(R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}})")
                  .zero.offload_optimizer->pin_memory);
  EXPECT_FALSE(
      load(R"("zero_optimization": {"stage": 1, "offload_optimizer": {}})").zero.offload_optimizer);
  const auto refusal = [](const char* rest) {
    return error_of(str_cat(R"("zero_optimization": {"stage": )", rest, "}}"));
  };
  EXPECT_THAT(refusal(R"(0, "offload_optimizer": {"device": "nvme", "nvme_path": "/x")"),
              HasSubstr("not at stage 0"));
  EXPECT_THAT(refusal(R"(3, "offload_optimizer": {"device": "nvme")"),
              HasSubstr("needs the folder for the files"));
  const ZeroConfig files = load(R"("zero_optimization": {"stage": 2, "offload_optimizer":
              {"device": "nvme", "nvme_path": "/fast", "pipeline_write": true}},
              "aio": {"block_size": 5000, "queue_depth": 3})")
                               .zero;
  ASSERT_TRUE(files.offload_optimizer && files.offload_optimizer->in_files());
  EXPECT_EQ(files.offload_optimizer->nvme_path, "/fast");
  EXPECT_FALSE(files.offload_optimizer->pipeline_read);
  EXPECT_TRUE(files.offload_optimizer->pipeline_write);
  EXPECT_THAT(error_of(R"("aio": {"use_gds": true})"), HasSubstr("GPUDirect Storage"));
  EXPECT_EQ(zero.offload_optimizer->ratio, 1);
  EXPECT_EQ(load(R"("zero_optimization": {"stage": 3,
                    "offload_optimizer": {"device": "cpu", "ratio": 0.3}})")
                .zero.offload_optimizer->ratio,
            0.3);
  EXPECT_THAT(refusal(R"(3, "offload_optimizer": {"device": "cpu", "ratio": 1.5)"),
              HasSubstr("/zero_optimization/offload_optimizer/ratio: 1.5 is out of range"));
  const AioConfig aio = load(R"("aio": {"single_submit": true, "overlap_events": false})").aio;
  EXPECT_TRUE(aio.single_submit);
  EXPECT_FALSE(aio.overlap_events);
  const auto early =
      *load(R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu",
                              "super_offload": true, "cpuadam_cores_perc": 0.5}})")
           .zero.offload_optimizer;
  EXPECT_TRUE(early.super_offload);
  EXPECT_EQ(early.cpuadam_cores_perc, 0.5);
  EXPECT_THAT(refusal(R"(3, "offload_optimizer": {"device": "cpu", "cpuadam_cores_perc": 0)"),
              HasSubstr("cpuadam_cores_perc: 0 is out of range"));
}

TEST(Config, AutoIsTheDefaultWhereSomethingResolvesIt) {
  const Config config = load(
      R"("bf16": {"enabled": false}, "fp16": {"enabled": false, "initial_scale_power": "auto"},
         "zero_optimization": {"stage": 0, "reduce_bucket_size": "auto"},
         "tensorboard": {"job_name": "auto"}, "pipeline": {"stages": "auto"})");
  EXPECT_EQ(config.precision.compute, Precision::kFp32);
  EXPECT_EQ(config.origins().at("/zero_optimization/reduce_bucket_size"), "default");
  EXPECT_EQ(config.tensorboard.job_name, "DeepSpeedJobName");
  for (const char* more :
       {R"("gradient_clipping": "auto")",
        R"("optimizer": {"type": "AdamW", "params": {"lr": "auto"}})",
        R"("aio": {"queue_depth": "auto"})",
        R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}})"}) {
    EXPECT_THAT(error_of(more), HasSubstr("\"auto\" is not resolved here")) << more;
  }
}

TEST(Config, LossScale) {
  for (const auto& [text, value] : {std::pair<const char*, double>{"0", 0},
                                    {"1", 1},
                                    {"2.0", 2},
                                    {"\"3\"", 3},
                                    {"\"1e2\"", 100}}) {
    const Config config = load(std::string("\"fp16\": {\"loss_scale\": ") + text + "}");
    EXPECT_EQ(config.resolved()["fp16"]["loss_scale"], value) << text;
  }
  // A window that is not in use may be anything.
  EXPECT_NO_THROW(load(R"("fp16": {"loss_scale_window": 0, "min_loss_scale": -1})"));
  // Used with a static scale neither.
  EXPECT_NO_THROW(load(R"("fp16": {"enabled": true, "loss_scale": 8, "loss_scale_window": 0})"));
  const Config config = load(
      R"("fp16": {"enabled": true, "loss_scale": "3", "initial_scale_power": 8, "hysteresis": 4,
          "loss_scale_window": 2, "consecutive_hysteresis": true, "min_loss_scale": 16},
          "max_consecutive_skips": 7)");
  EXPECT_EQ(config.precision.compute, Precision::kFp16);
  EXPECT_EQ(config.max_consecutive_skips, 7);
  const LossScaleConfig& scale = config.precision.loss_scale;
  EXPECT_EQ(scale.loss_scale, 3);
  EXPECT_EQ(scale.initial_scale_power, 8);
  EXPECT_EQ(scale.loss_scale_window, 2);
  EXPECT_EQ(scale.hysteresis, 4);
  EXPECT_TRUE(scale.consecutive_hysteresis);
  EXPECT_EQ(scale.min_loss_scale, 16);
}

TEST(Config, ZeroObjects) {
  const Config config = load(
      R"("zero_optimization": {"offload_param": {}, "offload_optimizer": {"device": "none"},
          "leaf_module": {"classes": "Block", "names": ["a", "b", "a"]}})");
  const Json& zero = config.resolved()["zero_optimization"];
  EXPECT_EQ(zero["offload_param"]["device"], "none");
  EXPECT_EQ(zero["offload_param"]["buffer_count"], 5);
  EXPECT_EQ(zero["offload_optimizer"]["buffer_count"], 4);
  EXPECT_EQ(zero["leaf_module"]["classes"], Json::array({"Block"}));
  EXPECT_EQ(zero["leaf_module"]["names"], (Json::array({"a", "b"})));
}

TEST(Config, RecomputingSingleBlocksExcludesSegments) {
  EXPECT_EQ(load(R"("activation_checkpointing": {"enabled": true, "checkpoint_every_nth": 2})")
                .activation_checkpointing.checkpoint_every_nth,
            2);
  EXPECT_THAT(error_of(R"("activation_checkpointing": {"enabled": true,
                 "checkpoint_every_nth": 2, "number_checkpoints": 2})"),
              HasSubstr("checkpoint_every_nth: does not work with number_checkpoints"));
  EXPECT_THAT(error_of(R"("activation_checkpointing": {"checkpoint_every_nth": 0})"),
              HasSubstr("checkpoint_every_nth"));
}

TEST(Config, WarningsWithoutEffect) {
  EXPECT_THAT(load(R"("vocabulary_size": 50257)").warnings(),
              ElementsAre(HasSubstr("/vocabulary_size: 50257")));
  EXPECT_THAT(load(R"("activation_checkpointing": {"number_checkpoints": 4})").warnings(),
              ElementsAre(HasSubstr("has no effect until")));
  EXPECT_THAT(load(R"("activation_checkpointing": {"cpu_checkpointing": true})").warnings(),
              ElementsAre(HasSubstr("has no effect until")));
  EXPECT_THAT(load(R"("activation_checkpointing": {"checkpoint_every_nth": 2})").warnings(),
              ElementsAre(HasSubstr("has no effect until")));
  EXPECT_THAT(load(R"("activation_checkpointing": {"enabled": true, "number_checkpoints": 2,
                   "partition_activations": true, "contiguous_memory_optimization": true})")
                  .warnings(),
              ElementsAre(HasSubstr("no model-parallel ranks"), HasSubstr("the arena")));
  EXPECT_THAT(
      load(R"("optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}})").warnings(),
      ElementsAre(HasSubstr("no effect with AdamW")));
  EXPECT_THAT(load(R"("zero_optimization": {"stage": 3, "elastic_checkpoint": true})").warnings(),
              ElementsAre(HasSubstr("a checkpoint of any stage loads with any number of ranks")));
}

TEST(Config, NoOpsInOneProcessAreAccepted) {
  EXPECT_NO_THROW(load(
      R"("prescale_gradients": true, "gradient_predivide_factor": 2, "gradient_allreduce_op": "sum",
         "zero_allow_untested_optimizer": true, "checkpoint": {"tag_validation": "ignore"})"));
}

TEST(Config, DataParallelSizeEntersTheBatch) {
  const Config config = load("", 4);
  EXPECT_EQ(config.batch.micro_batch, 2);
  EXPECT_EQ(config.batch.data_parallel, 4);
  EXPECT_EQ(config.resolved()["train_micro_batch_size_per_gpu"], 2);
}

TEST(Config, OversizedDocumentIsRefused) {
  EXPECT_THAT(error_of(std::string(5 << 20, ' ')), HasSubstr("bytes"));
}

}  // namespace
}  // namespace ds
