// Decodes texts: keeps what it has seen of them in a key-value cache and gives the logits that
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
  struct Room {
    int64_t texts = 1;   // at once
    int64_t tokens = 0;  // of each
  };
  // Store and model outlive it. Of the options it needs `graphs`, `kv` and `ranks`. On a CPU
  // several texts are in blocks.
  Decoder(const OpContext& ctx, nn::ParameterReader& weights, const models::Architecture& model,
          const Room& room, const GenerateOptions& options);

  int64_t length(int64_t text) const { return cache_.length(text); }
  void forget(int64_t text) { cache_.shorten(text, 0); }
  // Whether texts may change places.
  bool in_blocks() const { return cache_.in_blocks(); }
  void exchange(int64_t a, int64_t b) { cache_.exchange(a, b); }

  // Feeds tokens of one text and returns the logits that follow the last one, until the next call.
  std::span<const float> feed(int64_t text, std::span<const int32_t> tokens);
  // Feeds a token of each of the first texts: the logits of one after the other.
  std::span<const float> feed_each(std::span<const int32_t> tokens);
  // Feeds the texts from `first` on, of which nothing is known yet, tokens of each in one pass, in
  // which shorter ones have padding behind them: the logits that follow each.
  std::span<const float> feed_prompts(int64_t first,
                                      std::span<const std::span<const int32_t>> prompts);
  // Whether it is known that a prompt of `own` tokens has the bits that it has alone when it is fed
  // with others, all of them of `longest` tokens with their padding and of `rows` together.
  bool reads_alike(int64_t own, int64_t longest, int64_t rows) const;
  // A pass that other ranks make for a text of theirs. What was fed so far is forgotten.
  void take_part();

 private:
  Tensor logits(const models::Batch& batch, const nn::TapeOptions& options,
                models::ForwardOptions forward = {});
  // As many tokens of each chosen text.
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
