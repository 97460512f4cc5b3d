#include "zero/share_options.h"

namespace ds::zero {

void check_group_sizes(const StateGroupSizes& sizes, const MeshShape& mesh) {
  const int ranks = mesh.size(MeshGroup::kDataContext), experts = mesh.size(MeshAxis::kExpert);
  constexpr const char* kPath = "configuration: /zero_optimization/";
  DS_CHECK(sizes.shard == 0 || ranks % sizes.shard == 0, Code::kConfig, kPath,
           "mics_shard_size: ", sizes.shard, " does not divide the ", ranks,
           " data-parallel ranks; use a divisor, or -1");
  DS_CHECK(ranks % sizes.secondary == 0, Code::kConfig, kPath,
           "zero_hpz_partition_size: ", sizes.secondary, " does not divide the ", ranks,
           " data-parallel ranks; use a divisor, such as the ranks of a node");
  const auto check_experts = [&](const char* key, int part) {
    DS_CHECK(part % experts == 0, Code::kConfig, kPath, key, ": ", part,
             " ranks do not hold all experts of a layer, which ", experts,
             " ranks share (expert_parallel); use a multiple of ", experts);
  };
  check_experts("mics_shard_size", sizes.shard);
  if (sizes.secondary > 1) check_experts("zero_hpz_partition_size", sizes.secondary);
}

LayoutPolicy layout_policy(const ShareOptions& options) {
  LayoutPolicy policy;
  policy.stage = options.stage;
  policy.shard = options.groups.shard;
  policy.bucket_elements = options.bucket_elements;
  policy.fp32 = options.fp32;
  policy.sparse = options.sparse;
  policy.param_persistence_threshold = options.param_persistence_threshold;
  policy.model_persistence_threshold = options.model_persistence_threshold;
  policy.quantized_gradients = options.quantized_gradients;
  policy.quantized_frozen = options.weights.quantized_frozen;
  // Gradients that the caller gives are whole.
  const bool whole = options.deferred_gradients || options.eager_gradients;
  policy.tile_elements = whole ? 0 : options.tile_elements;
  return policy;
}

}  // namespace ds::zero
