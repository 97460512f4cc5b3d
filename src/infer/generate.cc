#include "infer/generate.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/philox.h"
#include "comm/message_memory.h"
#include "infer/decoder.h"
#include "models/inputs.h"

namespace ds::infer {
namespace {

// Random streams of generation, apart from those of training and initialisation.
constexpr uint32_t kGenerationStep = 0xFFFFFFFEu;

// Checks the shapes of a batch, fills in positions, and takes it to the device.
void complete(const OpContext& ctx, const models::Architecture& architecture,
              models::Batch& batch) {
  const Tensor& ids = batch.ids;
  DS_CHECK(ids && ids.dims() == 2 && ids.elements() > 0, Code::kInvalidArgument,
           "ids must have shape [batch, length], not ", ids ? ids.shape().text() : "no data");
  DS_CHECK(ids.size(1) <= architecture.info().max_positions, Code::kInvalidArgument,
           "sequences of ", ids.size(1), " tokens are longer than the model's ",
           architecture.info().max_positions, " positions");
  DS_CHECK(!batch.token_types || architecture.info().token_types > 0, Code::kInvalidArgument,
           "token types are given, but the model knows none");
  if (!batch.position_ids) {
    batch.position_ids = models::position_ids(host_of(ctx), ids.size(0), ids.size(1), 0);
  }
  batch = models::to_device(std::move(batch), ctx.device);
}

// Ranks that make passes together tell each other before each one who has a text to go on with.
class Turns {
 public:
  Turns(const OpContext& ctx, const RankGroup& ranks) : ranks_(ranks) {
    if (!ranks_) return;
    goes_on_ = comm::message_memory(*ranks_.comm, host_of(ctx).device, DType::kInt32, {1},
                                    MemoryTag::kWorkspace);
  }

  // Whether any rank goes on.
  bool take(bool goes_on) {
    if (!ranks_) return goes_on;
    *goes_on_.data<int32_t>() = goes_on ? 1 : 0;
    ranks_->all_reduce(goes_on_, ReduceOp::kMax, {.label = "turns", .blocking = true})->wait();
    return *goes_on_.data<int32_t>() != 0;
  }
  explicit operator bool() const { return static_cast<bool>(ranks_); }

  // The pass of this turn. The others are in it, too: a rank that leaves it ends the group.
  template <class Pass>
  auto pass(const Pass& make) {
    try {
      return make();
    } catch (const std::exception& error) {
      if (ranks_) ranks_->abort(str_cat("a pass over the model failed: ", error.what()));
      throw;
    }
  }

 private:
  const RankGroup ranks_;
  Tensor goes_on_;
};

// Makes the others' passes until all have finished.
void serve(Decoder& decoder, Turns& turns) {
  while (turns && turns.take(false)) turns.pass([&] { decoder.take_part(); });
}

void check_request(const models::ArchitectureInfo& info, std::span<const int32_t> prompt,
                   const GenerateOptions& options) {
  check_sampling(options.sampling);
  DS_CHECK(info.head == models::Head::kCausalLm, Code::kUnsupported,
           "only causal language models continue a text; this model has another head");
  DS_CHECK(!prompt.empty(), Code::kInvalidArgument, "the prompt is empty; give at least one token");
  DS_CHECK(options.max_tokens >= 0, Code::kInvalidArgument, "max_tokens must be 0 or more, not ",
           options.max_tokens);
  for (const int32_t id : prompt) {
    DS_CHECK(id >= 0 && id < info.vocab_size, Code::kInvalidArgument, "the prompt holds token ", id,
             ", outside the model's vocabulary of ", info.vocab_size);
  }
}

models::ForwardOptions pass_options(const ExchangeRanks& experts) {
  models::ForwardOptions options;
  if (experts) options.expert_ranks = &experts;
  return options;
}

}  // namespace

void take_part(const OpContext& ctx, nn::ParameterReader& weights,
               const models::Architecture& architecture, const models::PassRanks& ranks) {
  if (!ranks.together) return;
  GenerateOptions options;
  options.ranks = ranks;
  Decoder decoder(ctx, weights, architecture, 1, options);
  Turns turns(ctx, ranks.together);
  serve(decoder, turns);
}

std::vector<int32_t> generate(const OpContext& ctx, nn::ParameterReader& weights,
                              const models::Architecture& architecture,
                              std::span<const int32_t> prompt, const GenerateOptions& options,
                              const std::function<bool(int32_t)>& on_token) {
  try {
    check_request(architecture.info(), prompt, options);
  } catch (const Error&) {  // the others' texts are not to blame
    if (options.ranks.together) take_part(ctx, weights, architecture, options.ranks);
    throw;
  }
  const models::ArchitectureInfo& info = architecture.info();
  std::vector<int32_t> text(prompt.begin(), prompt.end());
  const auto prompt_length = static_cast<int64_t>(prompt.size());
  const int64_t capacity = options.max_tokens >= info.max_positions
                               ? info.max_positions
                               : std::min(info.max_positions, prompt_length + options.max_tokens);
  Decoder decoder(ctx, weights, architecture, capacity, options);
  // Of a prompt that is too long, the end counts.
  int64_t fresh = std::min(prompt_length, std::max<int64_t>(1, capacity - 1));
  if (fresh < prompt_length && options.max_tokens > 0) {
    log_warning("infer", "the prompt has ", prompt_length, " tokens, the model ",
                info.max_positions, " positions: its last ", fresh, " tokens are read");
  }
  bool forgot = false;
  Turns turns(ctx, options.ranks.together);
  const auto next_token = [&](int64_t i) {
    turns.take(true);
    if (decoder.full()) {
      decoder.forget();
      fresh = std::max<int64_t>(1, capacity / 2);
      if (!std::exchange(forgot, true)) {
        log_warning("infer", "the text fills the model's ", capacity, " positions after ", i,
                    " new tokens: from here on it goes on from its last ", fresh,
                    " tokens alone, and again whenever they are full");
      }
    }
    const std::span<const float> logits =
        turns.pass([&] { return decoder.feed(std::span(text).last(static_cast<size_t>(fresh))); });
    const RandomStream stream{options.seed, kGenerationStep, 0};
    const double uniform = (stream.bits(static_cast<uint64_t>(i)) + 0.5) * 0x1.0p-32;
    return sample_token(logits, options.sampling, uniform);
  };
  const auto tell = [&](int32_t token) {
    if (on_token && !on_token(token)) fail(Code::kCallback, "the token callback asked to stop");
  };
  std::exception_ptr stopped;
  for (int64_t i = 0; i < options.max_tokens && !stopped; ++i) {
    const int32_t token = next_token(i);
    if (options.stop_token && token == *options.stop_token) break;
    text.push_back(token);
    fresh = 1;
    try {
      tell(token);
    } catch (...) {  // the others may go on
      stopped = std::current_exception();
    }
  }
  serve(decoder, turns);
  if (stopped) std::rethrow_exception(stopped);
  return {text.begin() + prompt_length, text.end()};
}

Tensor batch_logits(const OpContext& ctx, nn::ParameterReader& weights,
                    const models::Architecture& architecture, models::Batch batch,
                    const ExchangeRanks& experts) {
  complete(ctx, architecture, batch);
  nn::Tape tape(ctx, weights, nullptr, inference_options());
  return to_fp32(ctx, architecture.logits(tape, batch, pass_options(experts)).data);
}

Tensor batch_logits(const OpContext& ctx, nn::ParameterReader& weights,
                    const models::Architecture& architecture, const Tensor& ids,
                    const Tensor& key_mask) {
  models::Batch batch;
  batch.ids = ids;
  batch.key_mask = key_mask;
  return batch_logits(ctx, weights, architecture, std::move(batch));
}

Tensor batch_hidden(const OpContext& ctx, nn::ParameterReader& weights,
                    const models::Architecture& architecture, models::Batch batch,
                    const ExchangeRanks& experts) {
  complete(ctx, architecture, batch);
  nn::Tape tape(ctx, weights, nullptr, inference_options());
  return to_fp32(ctx, architecture.hidden(tape, batch, pass_options(experts)).data);
}

}  // namespace ds::infer
