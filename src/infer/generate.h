// Continues texts, token by token, with a key-value cache.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "infer/kv_blocks.h"
#include "infer/sampling.h"
#include "models/architecture.h"
#include "models/pass_ranks.h"

namespace ds::infer {

struct GenerateOptions {
  int64_t max_tokens = 64;
  SamplingOptions sampling;
  uint64_t seed = 0;
  std::optional<int32_t> stop_token;
  bool graphs = true;  // record a token's work where that works (DecodeGraphs); no bit changes
  KvOptions kv;        // blocks change no bit
  models::PassRanks ranks;
};

// Returns the new tokens, without the stop token. `on_token` sees each one; false stops with
// kCallback. When the positions are used up, the older half of the window is forgotten.
//
// Where ranks make passes together every one of them calls this, each with a text and options of
// its own, or take_part: one that has finished takes part until all have. A request that is refused
// is refused when the others have finished; a pass that fails ends the group.
std::vector<int32_t> generate(const OpContext& ctx, nn::ParameterReader& weights,
                              const models::Architecture& architecture,
                              std::span<const int32_t> prompt, const GenerateOptions& options,
                              const std::function<bool(int32_t)>& on_token);

// What a caller answers to a token of one of several texts.
enum class Reply { kGoOn, kEndText, kEndAll };

// Products of up to so many rows sum in the order of one row's (ops::few_rows).
inline constexpr int64_t kBatchWithSameBits = 16;

struct BatchOptions {
  int64_t at_once = kBatchWithSameBits;  // texts in one pass at most
};

// Continues several prompts, of which at most `at_once` are in a pass together: each weight is read
// once for all of them, and where one text ends the next prompt takes its place. Prompts of about
// the same length are read together where that leaves the bits of each. Text i is that of
// generate() with the seed options.seed + i, bit for bit up to kBatchWithSameBits texts at once on
// a CPU. Fewer go together where the pool of blocks has no room for all. A prompt that is refused
// refuses all. kEndAll stops with kCallback. Ranks that make passes together: as generate().
std::vector<std::vector<int32_t>> generate_batch(
    const OpContext& ctx, nn::ParameterReader& weights, const models::Architecture& architecture,
    std::span<const std::span<const int32_t>> prompts, const GenerateOptions& options,
    const BatchOptions& batch, const std::function<Reply(int64_t text, int32_t token)>& on_token);

// The part of a rank that has no text of its own; nothing where there are no other ranks.
void take_part(const OpContext& ctx, nn::ParameterReader& weights,
               const models::Architecture& architecture, const models::PassRanks& ranks);

// Logits fp32 of a batch without training, as the model's head gives them: [B, T, V] or
// [B, classes], where the model is. `batch` holds checked ids, which may lie on the host; missing
// position_ids count from 0. `experts`: the ranks that share them, which all call this; or none.
Tensor batch_logits(const OpContext& ctx, nn::ParameterReader& weights,
                    const models::Architecture& architecture, models::Batch batch,
                    const ExchangeRanks& experts = {});
// The same from ids int32 [B, T] alone; `key_mask` may be empty.
Tensor batch_logits(const OpContext& ctx, nn::ParameterReader& weights,
                    const models::Architecture& architecture, const Tensor& ids,
                    const Tensor& key_mask);

// Hidden states fp32 [B, T, W] after the last norm.
Tensor batch_hidden(const OpContext& ctx, nn::ParameterReader& weights,
                    const models::Architecture& architecture, models::Batch batch,
                    const ExchangeRanks& experts = {});

}  // namespace ds::infer
