// What a configuration says about spreading training state over ranks, for the engine and its plan.
#pragma once

#include <algorithm>

#include "config/config.h"
#include "zero/state_files.h"
#include "zero/train_state.h"
#include "zero/twin_flow_arrays.h"

namespace ds {

inline DType dtype_of(Precision precision) {
  switch (precision) {
    case Precision::kFp16:
      return DType::kFloat16;
    case Precision::kBf16:
      return DType::kBFloat16;
    default:
      return DType::kFloat32;
  }
}

// All but the group and whose gradients they are.
inline zero::ShareOptions share_options(const Config& config) {
  const ZeroConfig& zero = config.zero;
  // Larger buckets bring nothing and keep more memory busy.
  constexpr int64_t kMostElements = int64_t{16} << 20;
  zero::ShareOptions options;
  options.stage = zero.stage;
  options.bucket_elements = std::min(zero.reduce_bucket_size, kMostElements);
  // What a bucket reduces it gathers: the smaller of both sizes holds.
  if (zero.stage == 1 || zero.stage == 2) {
    options.bucket_elements = std::min(options.bucket_elements, zero.allgather_bucket_size);
  }
  options.comm_dtype = dtype_of(config.precision.communication_data_type);
  const std::string& origin = config.origins().at("/communication_data_type");
  options.comm_dtype_for_all = origin != "default" && origin != "derived";
  options.overlap = zero.overlap_comm;
  options.reduce_scatter = zero.reduce_scatter;
  options.op = zero.average ? ReduceOp::kAverage : ReduceOp::kSum;
  options.param_persistence_threshold = zero.param_persistence_threshold;
  options.model_persistence_threshold = zero.model_persistence_threshold;
  options.tile_elements = zero.tile_size;
  options.gather = {zero.max_live_parameters, zero.max_reuse_distance, zero.prefetch_bucket_size,
                    zero.log_trace_cache_warnings};
  if (zero.offload_param && zero.offload_param->in_files()) {
    // What is read ahead fits into the buffers.
    const ZeroConfig::ParamOffload& offload = *zero.offload_param;
    const double room =
        static_cast<double>(offload.buffer_count) * static_cast<double>(offload.buffer_size);
    int64_t& ahead = options.gather.prefetch;
    if (room < static_cast<double>(ahead)) ahead = static_cast<int64_t>(room);
  }
  options.groups = {std::max(zero.mics_shard_size, 0), zero.zero_hpz_partition_size};
  options.weights = {zero.zero_quantized_weights, zero.zero_quantized_nontrainable_weights,
                     zero.mics_hierarchical_params_gather};
  options.quantized_gradients = zero.zero_quantized_gradients;
  if (zero.zeropp_loco_param) {
    options.feedback = {static_cast<float>(zero.zeropp_loco_param->err_beta),
                        zero.zeropp_loco_param->reset_T};
  }
  return options;
}

// Ranks that hold one copy of the state together, of so many that train.
inline int shard_ranks(const Config& config, int ranks) {
  const int shard = config.zero.mics_shard_size;
  return shard > 0 ? std::min(shard, ranks) : ranks;
}

// Whether weights rest in files, which ranks then hold in pieces, as one alone does. Weights of
// type fp32 are masters, which lie where the optimizer's state does.
inline bool weights_in_files(const Config& config) {
  const ZeroConfig& zero = config.zero;
  if (zero.stage != 3 || !zero.offload_param || !zero.offload_param->in_files()) return false;
  const bool state = zero.offload_optimizer && zero.offload_optimizer->in_files();
  return state || config.precision.compute != Precision::kFp32;
}

// Whether weights rest on the host, in memory or in files, beside a GPU that has what it uses of
// them.
inline bool weights_beside_gpu(const Config& config) {
  const ZeroConfig& zero = config.zero;
  return zero.stage == 3 && zero.offload_param && zero.offload_optimizer;
}

// Whether a share of an optimizer's state that is offloaded to memory may stay on the GPU
// (Twin-Flow). Parts that are updated beside backward, chosen elements and whole matrices are
// updated on the host alone.
inline bool may_keep_share_on_device(const Config& config) {
  const auto& offload = config.zero.offload_optimizer;
  return offload && !offload->in_files() && !offload->super_offload && !config.zero.zenflow &&
         !(config.optimizer && config.optimizer->type == OptimizerType::kMuon);
}
inline bool keeps_share_on_device(const Config& config) {
  return may_keep_share_on_device(config) && config.zero.offload_optimizer->ratio < 1;
}

// What `aio` says of each of its threads.
inline io::QueueOptions queue_options(const AioConfig& aio) {
  constexpr int64_t kPage = io::kAlignment;
  const int64_t block = std::clamp<int64_t>(aio.block_size, 1, int64_t{1} << 30);
  return {.depth = std::clamp(aio.queue_depth, 1, 4096),
          .block_bytes = (block + kPage - 1) / kPage * kPage,
          .single_submit = aio.single_submit,
          .overlap = aio.overlap_events};
}

// What nvme_checkpointing and `aio` say of the inputs that checkpointed segments keep.
inline io::FileArrayOptions input_file_options(const Config& config) {
  io::FileArrayOptions files;
  files.folder = config.activation_checkpointing.nvme_path;
  files.setting = "activation_checkpointing.nvme_path";
  files.queue = queue_options(config.aio);
  files.parallelism = std::clamp(config.aio.intra_op_parallelism, 1, 64);
  // Of a segment or two: residual stream, and what families pass along with it.
  files.ranges_ahead = 8;
  files.ranges_behind = 4;
  // What was in use at once is kept until the end of the pass.
  files.part_bytes = int64_t{1} << 30;
  return files;
}

// Memory that state travels through and that stays from one update to the next. Where a system
// takes back what is free, as virtual machines do, fresh memory costs more time than the disk.
constexpr int64_t kKeptForUpdates = int64_t{64} << 20;

// What the offload to files and `aio` say, of a rank of so many that share a copy of the weights.
// `states_alone`: gradients stay in memory.
inline zero::StateFileOptions state_file_options(const Config& config, bool states_alone,
                                                 int ranks) {
  const ZeroConfig& zero = config.zero;
  io::FileArrayOptions files;
  files.queue = queue_options(config.aio);
  files.parallelism = std::clamp(config.aio.intra_op_parallelism, 1, 64);
  zero::StateFileOptions options;
  if (zero.offload_optimizer && zero.offload_optimizer->in_files()) {
    options.optimizer = files;
    options.optimizer->part_bytes = 0;  // what an update takes at a time
    options.optimizer->kept_bytes = kKeptForUpdates;
    options.optimizer->setting = "zero_optimization.offload_optimizer.nvme_path";
    options.optimizer->folder = zero.offload_optimizer->nvme_path;
    options.optimizer->read_ahead = zero.offload_optimizer->pipeline_read;
    options.optimizer->write_behind = zero.offload_optimizer->pipeline_write;
    options.optimizer_share = zero.offload_optimizer->ratio;
  }
  if (weights_in_files(config)) {
    options.weights = files;
    options.weights->setting = "zero_optimization.offload_param.nvme_path";
    options.weights->folder = zero.offload_param->nvme_path;
    options.weights->ranges_ahead = SIZE_MAX;  // as many as are asked for
    options.weights_in_memory = zero.offload_param->max_in_cpu;
    options.weights->part_bytes = share_options(config).bucket_elements / ranks *
                                  dtype_size(dtype_of(config.precision.compute));
  }
  options.sub_group_elements = zero.sub_group_size;
  options.gradients = !states_alone;
  return options;
}

inline zero::TwinFlowOptions twin_flow_options(const Config& config) {
  const ZeroConfig& zero = config.zero;
  return {.host_share = zero.offload_optimizer->ratio,
          .pinned = zero.offload_optimizer->pin_memory,
          .sub_group_elements = zero.sub_group_size};
}

// `host` is the host's pageable memory.
inline zero::OffloadOptions offload_options(const Config& config,
                                            const std::shared_ptr<Device>& host) {
  const ZeroConfig& zero = config.zero;
  // What is mapped of files at a time is what travels.
  const bool in_files = zero.offload_optimizer->in_files() || weights_in_files(config);
  return {.host = host,
          .pinned = zero.offload_optimizer->pin_memory,
          .buffers = std::min(zero.offload_optimizer->buffer_count, 64),
          .sub_group_elements =
              in_files ? zero::StateFiles::most_of(zero.sub_group_size) : zero.sub_group_size,
          .bucket_elements = share_options(config).bucket_elements,
          .weights = weights_beside_gpu(config),
          .weights_pinned = !zero.offload_param || zero.offload_param->pin_memory};
}

}  // namespace ds
