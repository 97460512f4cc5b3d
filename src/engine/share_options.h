// What a configuration says about spreading training state over ranks, for the engine and its plan.
#pragma once

#include <algorithm>

#include "config/config.h"
#include "zero/train_state.h"

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
  options.bucket_elements = std::min(zero.reduce_bucket, kMostElements);
  // What a bucket reduces it gathers: the smaller of both sizes holds.
  if (zero.stage == 1 || zero.stage == 2) {
    options.bucket_elements = std::min(options.bucket_elements, zero.gather_bucket);
  }
  options.comm_dtype = dtype_of(config.precision.communicate);
  const std::string& origin = config.origins().at("/communication_data_type");
  options.comm_dtype_for_all = origin != "default" && origin != "derived";
  options.overlap = zero.overlap;
  options.reduce_scatter = zero.reduce_scatter;
  options.op = zero.average ? ReduceOp::kAverage : ReduceOp::kSum;
  options.param_persistence_threshold = zero.param_persistence_threshold;
  options.model_persistence_threshold = zero.model_persistence_threshold;
  options.tile_elements = zero.tile;
  options.gather = {zero.max_live, zero.max_reuse, zero.prefetch, zero.tell_order_changes};
  options.groups = {zero.shard_ranks, zero.hpz_partition_size};
  options.weights = {zero.quantized_weights, zero.quantized_frozen, zero.gather_by_node};
  options.quantized_gradients = zero.quantized_gradients;
  if (zero.feedback) {
    options.feedback = {static_cast<float>(zero.feedback->beta), zero.feedback->reset_after};
  }
  return options;
}

// `host` is the host's pageable memory.
inline zero::OffloadOptions offload_options(const Config& config,
                                            const std::shared_ptr<Device>& host) {
  const ZeroConfig& zero = config.zero;
  return {.host = host,
          .pinned = zero.offload_optimizer->pinned,
          .buffers = zero.offload_optimizer->buffers,
          .sub_group_elements = zero.sub_group,
          .bucket_elements = share_options(config).bucket_elements};
}

}  // namespace ds
