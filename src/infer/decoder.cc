#include "infer/decoder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "models/inputs.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/gemv.h"
#include "tensor/transfer.h"

namespace ds::infer {
namespace {

// cuDNN would plan, and compile, for the length of every prompt.
OpContext with_own_attention(OpContext ctx) {
  ctx.gpu.attention = kernels::AttentionChoice::kOwn;
  return ctx;
}

// Of several texts: large enough to cost no time, small enough for texts to differ.
constexpr int64_t kBlockTokens = 64;

KvCache make_cache(const OpContext& ctx, const models::ArchitectureInfo& info,
                   const Decoder::Room& room, DType compute, const KvOptions& options) {
  check_kv(options, info, *ctx.device);
  const DType dtype = options.codes ? DType::kInt8 : compute;
  KvBlockOptions blocks = options.blocks;
  if (blocks.block_tokens == 0 && room.texts > 1 && ctx.device->kind() == DeviceKind::kCpu) {
    blocks.block_tokens = kBlockTokens;
  }
  if (blocks.block_tokens == 0) return {ctx.device, info, room.texts, room.tokens, dtype};
  blocks.block_tokens = std::min(blocks.block_tokens, room.tokens);
  return {std::make_shared<KvBlockPool>(ctx.device, info, dtype, blocks), room.texts, room.tokens};
}

}  // namespace

nn::TapeOptions inference_options() {
  nn::TapeOptions options;
  options.record = false;
  options.training = false;
  return options;
}

Tensor to_fp32(const OpContext& ctx, const Tensor& x) {
  if (x.dtype() == DType::kFloat32) return x;
  Tensor y = ctx.workspace(DType::kFloat32, x.shape());
  ops::cast(ctx, x, y);
  return y;
}

OpContext host_of(const OpContext& ctx) { return {host_memory_of(ctx.device), ctx.pool}; }

Decoder::Decoder(const OpContext& ctx, nn::ParameterReader& weights,
                 const models::Architecture& model, const Room& room,
                 const GenerateOptions& options)
    : ctx_(with_own_attention(ctx)),
      host_(host_of(ctx)),
      weights_(weights),
      model_(model),
      experts_(options.ranks.experts),
      cache_(make_cache(ctx, model.info(), room, weights.compute_type(), options.kv)) {
  // What is recorded is a token of one text.
  if (options.graphs && room.texts == 1) {
    graphs_ = DecodeGraphs::make(ctx.device, weights, model.info());
  }
}

std::span<const float> Decoder::feed(int64_t text, std::span<const int32_t> tokens) {
  if (graphs_ && tokens.size() == 1 && feed_recorded(tokens.front())) {
    return fetch(graphs_->logits());
  }
  if (cache_.batch() > 1) cache_.choose(text, 1);
  return fetch(to_fp32(ctx_, logits(batch_of(tokens), inference_options())));
}

std::span<const float> Decoder::feed_each(std::span<const int32_t> tokens) {
  cache_.choose(0, std::ssize(tokens));
  return fetch(to_fp32(ctx_, logits(batch_of(tokens), inference_options())));
}

std::span<const float> Decoder::feed_prompts(int64_t first,
                                             std::span<const std::span<const int32_t>> prompts) {
  const int64_t count = std::ssize(prompts);
  size_t longest = 0;
  std::vector<int64_t> ends;
  for (const std::span<const int32_t> prompt : prompts) {
    longest = std::max(longest, prompt.size());
    ends.push_back(std::ssize(prompt) - 1);
  }
  std::vector<int32_t> tokens(longest * prompts.size(), 0);
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::copy(prompts[i].begin(), prompts[i].end(),
              tokens.begin() + static_cast<std::ptrdiff_t>(i * longest));
  }
  if (cache_.batch() > 1) cache_.choose(first, count);
  const Tensor found =
      to_fp32(ctx_, logits(batch_of(tokens), inference_options(), {.last_positions = ends}));
  // What follows a text does not see its padding.
  for (int64_t i = 0; i < count; ++i) {
    cache_.shorten(first + i, std::ssize(prompts[static_cast<size_t>(i)]));
  }
  return fetch(found);
}

bool Decoder::reads_alike(int64_t own, int64_t longest, int64_t rows) const {
  // A GPU's products of more than a few rows are the vendor's.
  if (ctx_.device->kind() != DeviceKind::kCpu) return false;
  // How many rows an expert has is known only when they have chosen.
  if (model_.info().experts > 0) return false;
  return ops::queries_alike(own, longest) &&
         ops::sums_alike(weights_.compute_type(), weights_.all_in_codes(), own, rows);
}

models::Batch Decoder::batch_of(std::span<const int32_t> tokens) {
  const std::vector<int64_t>& lengths = cache_.lengths();
  const int64_t texts = std::ssize(lengths), n = std::ssize(tokens) / texts;
  models::Batch batch;
  batch.ids = host_.workspace(DType::kInt32, {texts, n});
  std::copy(tokens.begin(), tokens.end(), batch.ids.data<int32_t>());
  batch.position_ids = host_.workspace(DType::kInt32, {texts, n});
  auto* positions = batch.position_ids.data<int32_t>();
  for (const int64_t length : lengths) {
    std::iota(positions, positions + n, static_cast<int32_t>(length));
    positions += n;
  }
  // Tables are made for as many positions as recorded work will ask for.
  if (graphs_) batch.positions = DecodeGraphs::room_for(lengths.front() + n, cache_.capacity());
  return models::to_device(std::move(batch), ctx_.device);
}

void Decoder::take_part() {
  if (cache_.batch() > 1) cache_.choose(0, 1);
  forget(0);
  const int32_t any = 0;
  logits(batch_of({&any, 1}), inference_options(), {.for_others = true});
}

bool Decoder::feed_recorded(int32_t token) {
  const auto pass = [this](const models::Batch& batch, Tensor& out, std::vector<Tensor>* reads) {
    nn::TapeOptions options = inference_options();
    options.constants = reads;
    ops::cast(ctx_, logits(batch, options), out);
  };
  return graphs_->run(token, cache_, pass);
}

Tensor Decoder::logits(const models::Batch& batch, const nn::TapeOptions& options,
                       models::ForwardOptions forward) {
  nn::Tape tape(ctx_, weights_, nullptr, options);
  forward.state = &cache_;
  forward.last_only = true;
  if (experts_) forward.expert_ranks = &experts_;
  return model_.logits(tape, batch, forward).data;
}

std::span<const float> Decoder::fetch(const Tensor& from) {
  logits_ = to_host(from, host_.device);
  return {logits_.data<float>(), static_cast<size_t>(logits_.elements())};
}

}  // namespace ds::infer
