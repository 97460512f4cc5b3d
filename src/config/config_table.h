// The key table of the DeepSpeed JSON document, one function per section. docs/configuration.md is
// generated from it.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "config/key_fields.h"

namespace ds {

// For config/key_fields.h: a number or a list of them; the schedule that a section describes.
void assign(PerGroup& field, const Key& key, const Json& value);
void assign(SchedulerConfig& field, const Key& key, const Json& value);

// The whole document.
const KeyTable& config_table();

// config_table_precision.cc
KeyTable fp16_table();
KeyTable bf16_table();
KeyTable fp8_table();
KeyTable amp_table();
KeyTable torch_autocast_table();
KeyTable data_types_table();
// config_table_optimizer.cc
KeyTable optimizer_table();
// config_table_scheduler.cc
KeyTable scheduler_table();
// config_table_zero.cc
KeyTable zero_table();
KeyTable aio_table();
// config_table_observe.cc
KeyTable timers_table();
KeyTable comms_logger_table();
KeyTable flops_profiler_table();
KeyTable tensorboard_table();
KeyTable csv_monitor_table();
KeyTable jsonl_monitor_table();
KeyTable wandb_table();
KeyTable comet_table();
// config_table_checkpoint.cc
KeyTable checkpoint_table();
KeyTable nebula_table();
KeyTable datastates_table();
KeyTable activation_checkpointing_table();
// config_table_tuning.cc
KeyTable elasticity_table();
KeyTable autotuning_table();
KeyTable eigenvalue_table();
KeyTable memory_plan_table();
KeyTable progressive_layer_drop_table();
// config_table_data.cc
KeyTable curriculum_learning_table();
KeyTable data_efficiency_table();
// config_table_compression.cc
KeyTable compression_table();
KeyTable distillation_table();
// config_table_parallel.cc
KeyTable sparse_attention_table();
KeyTable pipeline_table();
KeyTable tensor_parallel_table();
KeyTable expert_parallel_table();
KeyTable hybrid_engine_table();
KeyTable compile_table();
// config_table_cuda.cc
KeyTable cuda_table();

}  // namespace ds
