#include "infer/continuation.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/philox.h"

namespace ds::infer {
namespace {

// Random streams of generation, apart from those of training and initialisation.
constexpr uint32_t kGenerationStep = 0xFFFFFFFEu;

}  // namespace

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

Continuation::Continuation(const models::ArchitectureInfo& info, std::span<const int32_t> prompt,
                           const GenerateOptions& options, uint64_t seed)
    : options_(options),
      seed_(seed),
      prompt_(std::ssize(prompt)),
      capacity_(options.max_tokens >= info.max_positions
                    ? info.max_positions
                    : std::min(info.max_positions, prompt_ + options.max_tokens)),
      text_(prompt.begin(), prompt.end()),
      fresh_(std::min(prompt_, std::max<int64_t>(1, capacity_ - 1))) {
  // Of a prompt that is too long, the end counts.
  if (fresh_ < prompt_ && options.max_tokens > 0) {
    log_warning("infer", "the prompt has ", prompt_, " tokens, the model ", info.max_positions,
                " positions: its last ", fresh_, " tokens are read");
  }
}

void Continuation::begin_again() {
  fresh_ = std::max<int64_t>(1, capacity_ / 2);
  if (std::exchange(forgot_, true)) return;
  log_warning("infer", "the text fills the model's ", capacity_, " positions after ", count(),
              " new tokens: from here on it goes on from its last ", fresh_,
              " tokens alone, and again whenever they are full");
}

std::optional<int32_t> Continuation::sample(std::span<const float> logits) {
  const RandomStream stream{seed_, kGenerationStep, 0};
  const double uniform = (stream.bits(static_cast<uint64_t>(count())) + 0.5) * 0x1.0p-32;
  const int32_t token = sample_token(logits, options_.sampling, uniform);
  if (options_.stop_token && token == *options_.stop_token) {
    ended_ = true;
    return std::nullopt;
  }
  text_.push_back(token);
  fresh_ = 1;
  return token;
}

}  // namespace ds::infer
