// Decodes one sequence: keeps what it has seen in a key-value cache and gives the logits that
// follow.
#pragma once

#include <memory>
#include <span>

#include "infer/decode_graphs.h"
#include "infer/generate.h"
#include "infer/kv_cache.h"
#include "models/architecture.h"

namespace ds::infer {

// How tapes run that keep nothing for backward.
nn::TapeOptions inference_options();
// x in fp32, where it is.
Tensor to_fp32(const OpContext& ctx, const Tensor& x);
// For what the host reads and writes beside an operator's context.
OpContext host_of(const OpContext& ctx);

class Decoder {
 public:
  // Store and model outlive it. Of the options it needs `graphs`, `kv` and `ranks`.
  Decoder(const OpContext& ctx, nn::ParameterReader& weights, const models::Architecture& model,
          int64_t capacity, const GenerateOptions& options);

  bool full() const { return cache_.length(0) == cache_.capacity(); }
  void forget() { cache_.shorten(0, 0); }

  // Feeds tokens and returns the logits that follow the last one, until the next call.
  std::span<const float> feed(std::span<const int32_t> tokens);
  // A pass that other ranks make for a text of theirs. What was fed so far is forgotten.
  void take_part();

 private:
  Tensor logits(const models::Batch& batch, const nn::TapeOptions& options,
                bool for_others = false);
  models::Batch batch_of(std::span<const int32_t> tokens);
  bool feed_recorded(int32_t token);
  std::span<const float> fetch(const Tensor& from);

  const OpContext ctx_, host_;
  nn::ParameterReader& weights_;
  const models::Architecture& model_;
  const ExchangeRanks experts_;
  KvCache cache_;
  std::unique_ptr<DecodeGraphs> graphs_;  // ends before the cache that it reads
  Tensor logits_;
};

}  // namespace ds::infer
