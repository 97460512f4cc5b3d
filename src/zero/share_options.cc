#include "zero/share_options.h"

namespace ds::zero {

void check_group_sizes(const StateGroupSizes& sizes, int ranks) {
  constexpr const char* kPath = "configuration: /zero_optimization/";
  DS_CHECK(sizes.shard == 0 || ranks % sizes.shard == 0, Code::kConfig, kPath,
           "mics_shard_size: ", sizes.shard, " does not divide the ", ranks,
           " data-parallel ranks; use a divisor, or -1");
  DS_CHECK(ranks % sizes.secondary == 0, Code::kConfig, kPath,
           "zero_hpz_partition_size: ", sizes.secondary, " does not divide the ", ranks,
           " data-parallel ranks; use a divisor, such as the ranks of a node");
}

std::vector<bool> choose_resident(const nn::ParameterSet& parameters, const ShareOptions& options) {
  std::vector<bool> resident(static_cast<size_t>(parameters.size()));
  int64_t total = 0;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    if (!options.absent.empty() && options.absent[static_cast<size_t>(id)]) continue;
    const int64_t n = parameters[id].shape.elements();
    if (n > options.param_persistence_threshold || n > options.model_persistence_threshold - total)
      continue;
    resident[static_cast<size_t>(id)] = true;
    total += n;
  }
  return resident;
}

namespace {

// What travels as it is where much else is quantised: gradients of vectors, of which there are few
// and some of which are delicate, and frozen weights that are not worth it.
std::vector<bool> choose_exact(const nn::ParameterSet& parameters, const ShareOptions& options,
                               int world) {
  constexpr int64_t kMostFrozen = 500'000, kMostFrozenPiece = 2048;
  std::vector<bool> exact(static_cast<size_t>(parameters.size()));
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    const int64_t n = p.shape.elements();
    exact[static_cast<size_t>(id)] =
        p.trainable ? options.quantized_gradients && p.shape.dims() < 2
                    : options.weights.quantized_frozen &&
                          (n <= kMostFrozen || (n + world - 1) / world <= kMostFrozenPiece);
  }
  return exact;
}

}  // namespace

Sharing choose_sharing(const nn::ParameterSet& parameters, const ShareOptions& options,
                       const SharePlace& place) {
  Sharing sharing;
  // At stage 0 everybody owns everything, or all that it holds.
  if (options.stage > 0) {
    sharing.rank = place.rank;
    sharing.world = place.world;
    sharing.expert_rank = place.expert_rank;
    sharing.expert_world = place.expert_world;
  }
  sharing.experts = options.experts;
  sharing.absent = options.absent;
  sharing.bucket_elements = options.bucket_elements;
  sharing.fp32 = options.fp32;
  if (options.stage < 2) sharing.sparse = options.sparse;
  if (options.stage < 3) return sharing;
  sharing.resident = choose_resident(parameters, options);
  sharing.exact = choose_exact(parameters, options, place.world);
  // Gradients that the caller gives are whole.
  if (options.tile_elements == 0 || options.deferred_gradients || options.eager_gradients) {
    return sharing;
  }
  sharing.tile_elements = options.tile_elements;
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    sharing.tiled.push_back(parameters[id].may_be_tiled);
  }
  return sharing;
}

}  // namespace ds::zero
