#include "infer/generate.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "infer/continuation.h"
#include "infer/decoder.h"
#include "infer/turns.h"
#include "models/inputs.h"

namespace ds::infer {
namespace {

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
  Decoder decoder(ctx, weights, architecture, {1, 1}, options);
  Turns turns(ctx, ranks.together);
  turns.serve(decoder);
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
  Continuation text(architecture.info(), prompt, options, options.seed);
  Decoder decoder(ctx, weights, architecture, {1, text.capacity()}, options);
  Turns turns(ctx, options.ranks.together);
  const auto next_token = [&] {
    turns.take(true);
    if (decoder.length(0) == text.capacity()) {
      decoder.forget(0);
      text.begin_again();
    }
    return text.sample(turns.pass([&] { return decoder.feed(0, text.fresh()); }));
  };
  const auto tell = [&](int32_t token) {
    if (on_token && !on_token(token)) fail(Code::kCallback, "the token callback asked to stop");
  };
  std::exception_ptr stopped;
  while (!text.ended() && !stopped) {
    const std::optional<int32_t> token = next_token();
    if (!token) break;
    try {
      tell(*token);
    } catch (...) {  // the others may go on
      stopped = std::current_exception();
    }
  }
  turns.serve(decoder);
  if (stopped) std::rethrow_exception(stopped);
  return text.new_tokens();
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
