// How training state is spread over ranks, and what follows from that for the flat space.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "mesh/state_groups.h"
#include "zero/host_store.h"
#include "zero/layout.h"
#include "zero/quantized_reduce.h"
#include "zero/weight_gatherer.h"
#include "zero/weight_route.h"

namespace ds::zero {

// What each stage spreads is in DeepSpeed's words: 1 the masters and moments, 2 also the gradients,
// 3 also the weights. (Rajbhandari et al., arXiv:1910.02054. Gradients are spread from stage 1 on,
// because each micro batch is reduced.)
struct ShareOptions {
  int stage = 0;
  int64_t bucket_elements = 0;
  DType comm_dtype = DType::kFloat32;  // of gradients
  bool comm_dtype_for_all = true;      // also of those that are computed with in fp32
  std::vector<bool> sparse = {};       // by parameter: gradients travel as rows, at stages 0 and 1
  std::vector<bool> fp32 = {};  // by parameter: which those are, where others compute in less
  bool overlap = true;
  bool reduce_scatter = true;
  ReduceOp op = ReduceOp::kAverage;  // or kSum
  // The caller's gradients: whole, in any order, and reduced when a step is made of them or, with
  // `by_micro_batch`, at the end of each micro batch, as other gradients are.
  bool deferred_gradients = false;
  bool by_micro_batch = false;
  // The caller's gradients, which are reduced as soon as a bucket has all (stage 3).
  bool eager_gradients = false;
  // Stage 3: parameters of fewer elements stay whole, as long as all of them have fewer than
  // `model_persistence_threshold`.
  int64_t param_persistence_threshold = 0;
  int64_t model_persistence_threshold = 0;
  int64_t tile_elements = 0;  // of the weights of linear layers; 0: they are not tiled
  WeightGatherer::Limits gather = {};
  // Runs what may fail on one rank, and lets it fail on all.
  std::function<void(const std::function<void()>&)> together = [](const auto& body) { body(); };
  // Of stage 3, too: ZeRO++ and MiCS.
  StateGroupSizes groups = {};
  WeightRoute::Options weights = {};
  bool quantized_gradients = false;
  // Beside GPUs: what a rank owns of masters, gradients and moments lies in its host's memory.
  std::optional<OffloadOptions> offload = {};
  std::optional<QuantizedReduce::Feedback> feedback = {};  // of what their roundings lose
};

// Throws kConfig where the sizes do not divide the ranks that train, or parts of so many do not
// hold all experts of layers that ranks share.
void check_group_sizes(const StateGroupSizes& sizes, const MeshShape& mesh);
// Whether something of it goes among the ranks of a node first, or across nodes.
inline bool wants_nodes(const ShareOptions& options) {
  return options.quantized_gradients || options.weights.hierarchical;
}

// How masters of weights below fp32 are held.
enum class MasterForm {
  kFp32,    // beside the weights
  kSplit,   // bf16: as what the weights lack of them
  kWeights  // they are the weights: updates round to their type
};

// The layout that follows.
LayoutPolicy layout_policy(const ShareOptions& options);

}  // namespace ds::zero
