// What a pass over a model gets, what its layers share, and what goes from one layer to the next.
#pragma once

#include <memory>
#include <span>

#include "mesh/row_exchange.h"
#include "nn/layers.h"
#include "nn/router_record.h"

namespace ds::models {

struct Batch {
  Tensor ids;             // int32 [B, T]
  Tensor position_ids;    // int32 [B, T]
  Tensor key_mask;        // uint8 [B, T], 0 = padding, or empty
  Tensor segments;        // int32 [B, T]: tokens see only their own segment; or empty
  Tensor token_types;     // int32 [B, T], or empty for all 0
  int64_t positions = 0;  // position_ids lie below it; 0 = ask them
};

// The batch where a device has it. For a GPU its positions are counted while the host reads them.
Batch to_device(Batch batch, const std::shared_ptr<Device>& device);

// Which blocks run again in backward instead of keeping their activations; by default none.
struct Recompute {
  int64_t segments = 0;  // all of them, in so many groups
  int64_t every = 0;     // instead: every so-many-th block, on its own

  // Whether block `index` does, with `every`.
  bool alone(int64_t index) const { return every > 0 && (index + 1) % every == 0; }
  // Of all blocks.
  double share(int64_t layers) const {
    const int64_t blocks = every > 0 ? layers / every : layers;
    if (every > 0) return static_cast<double>(blocks) / static_cast<double>(layers);
    return segments > 0 ? 1 : 0;
  }
};

struct ForwardOptions {
  Recompute recompute = {};
  nn::AttentionState* state = nullptr;  // decoding: the tokens follow those that it has seen
  bool last_only = false;               // logits of the last position alone
  // With it, that position of each sequence; none: the last one of all of them.
  std::span<const int64_t> last_positions = {};
  // Where layers of experts leave what their routers chose, and their losses, of whose gradients
  // backward is then part; it lives until then. Null: nobody asks.
  nn::RouterRecord* routers = nullptr;
  // Among whom the experts of each layer are shared; see nn::MoePass. Null: all are here.
  const ExchangeRanks* expert_ranks = nullptr;
  // A pass that is made for other ranks' tokens: none of its own goes to an expert, and nobody
  // reads what it gives.
  bool for_others = false;
  // Rows of a language model's logits may be padded (nn::linear_padded): the caller goes by
  // info().outputs().
  bool padded_logits = false;
};

// One pass of one batch: what every layer reads, made by Architecture::begin_pass. Its place in the
// step, on which random streams depend, is an option of the tape (nn::TapeOptions).
struct PassContext {
  Batch batch;
  ForwardOptions options;
  nn::RotaryTable rotary = {};  // empty where queries and keys do not turn
};

// The residual stream between layers, kept as two summands so that each norm adds them while it
// reads them. `residual` may be empty.
struct ResidualStream {
  nn::Value x;
  nn::Value residual;
};

// Blocks [begin, end) of a model.
struct BlockRange {
  int64_t begin = 0;
  int64_t end = 0;
};

}  // namespace ds::models
