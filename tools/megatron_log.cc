#include "megatron_log.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace tool {
namespace {

// The first of these members that is a number, else `fallback`.
double size_of(const Json& model, std::initializer_list<const char*> names, double fallback) {
  for (const char* const name : names) {
    const auto found = model.find(name);
    if (found != model.end() && found->is_number()) return found->get<double>();
  }
  return fallback;
}

// Whether the feed-forward layer multiplies two projections, as SwiGLU does.
bool has_gate(const Json& model) {
  const std::string family = model.value("model_type", std::string());
  return family == "llama" || family == "mistral" || family == "qwen2";
}

}  // namespace

MegatronLog::MegatronLog(const Json& model, int64_t sequence_length, int ranks, bool recompute,
                         int64_t samples)
    : model_(model),
      length_(sequence_length),
      ranks_(ranks),
      recompute_(recompute),
      samples_(samples) {}

void MegatronLog::add(const libds::StepReport& report) {
  ++steps_;
  seconds_ += report.seconds;
  if (report.applied) {
    ++applied_;
    loss_ += report.loss;
  }
  if (!std::isfinite(report.loss)) ++bad_losses_;
  batch_ = report.samples - samples_;
  samples_ = report.samples;
  last_ = report;
}

// Multiplications and additions of the projections, of attention, of the feed-forward layers and of
// the logits, forward once and backward twice, or three times when the forward pass is repeated.
double MegatronLog::flops_per_sample() const {
  const double hidden = size_of(model_, {"hidden_size", "n_embd"}, 0);
  const double layers = size_of(model_, {"num_hidden_layers", "n_layer"}, 0);
  const double heads = size_of(model_, {"num_attention_heads", "n_head"}, 1);
  const double vocabulary = size_of(model_, {"vocab_size"}, 0);
  const double key_value = 2 * size_of(model_, {"num_key_value_heads"}, heads) / heads;
  const double inner = size_of(model_, {"intermediate_size", "n_inner"}, 4 * hidden);
  const auto length = static_cast<double>(length_);
  const double layer = (2 + key_value) * hidden * hidden + 2 * hidden * length +
                       (has_gate(model_) ? 3 : 2) * inner * hidden;
  return 2 * length * (layers * layer + vocabulary * hidden) * (recompute_ ? 4 : 3);
}

std::string MegatronLog::line(int64_t total) {
  const double seconds = seconds_ / static_cast<double>(std::max<int64_t>(steps_, 1));
  const double loss = loss_ / static_cast<double>(std::max<int64_t>(applied_, 1));
  const auto rate = [&](double amount) { return seconds > 0 ? amount / seconds : 0; };
  const auto batch = static_cast<double>(batch_);
  std::string out = format(" iteration %8lld/%8lld | consumed samples: %12lld |",
                           static_cast<long long>(last_.step), static_cast<long long>(total),
                           static_cast<long long>(samples_));
  out += format(" consumed tokens: %12lld | elapsed time per iteration (ms): %.1f |",
                static_cast<long long>(samples_) * length_, seconds * 1e3);
  out += format(" learning rate: %.3E | global batch size: %5lld |", last_.lr,
                static_cast<long long>(batch_));
  if (loss > 0) out += format(" lm loss: %.6E |", loss);
  out += format(" loss scale: %.1f |", last_.loss_scale);
  if (last_.grad_norm >= 0) out += format(" grad norm: %.3f |", last_.grad_norm);
  out += format(" actual seqlen: %5lld | number of skipped iterations: %3lld |",
                static_cast<long long>(length_), static_cast<long long>(steps_ - applied_));
  out += format(" number of nan iterations: %3lld | samples per second: %.3f |",
                static_cast<long long>(bad_losses_), rate(batch));
  out += format(" tokens per gpu per second (tgs): %.3f | TFLOPs: %.2f |",
                rate(batch * static_cast<double>(length_)) / ranks_,
                rate(batch * flops_per_sample()) / (ranks_ * 1e12));
  steps_ = applied_ = bad_losses_ = 0;
  seconds_ = loss_ = 0;
  return out;
}

}  // namespace tool
