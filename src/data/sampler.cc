#include "data/sampler.h"

#include <array>

#include "base/error.h"
#include "data/numpy_random.h"

namespace ds {
namespace {

constexpr std::array kKinds = {SamplerKind::kPasses, SamplerKind::kSingle, SamplerKind::kCyclic};

}  // namespace

const char* sampler_kind_name(SamplerKind kind) {
  switch (kind) {
    case SamplerKind::kPasses:
      return "passes";
    case SamplerKind::kSingle:
      return "single";
    case SamplerKind::kCyclic:
      return "cyclic";
  }
  return "unknown";
}

std::optional<SamplerKind> sampler_kind(std::string_view name) {
  for (const SamplerKind kind : kKinds) {
    if (name == sampler_kind_name(kind)) return kind;
  }
  return std::nullopt;
}

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  const int64_t total = options.total_samples;
  DS_CHECK(total > 0, Code::kInvalidArgument, "a sampler over ", total,
           " samples; there must be at least one");
  DS_CHECK(options.micro_batch > 0, Code::kInvalidArgument, "the micro batch is ",
           options.micro_batch, "; it must be at least 1");
  DS_CHECK(options.ranks > 0 && options.rank >= 0 && options.rank < options.ranks,
           Code::kInvalidArgument, "rank ", options.rank, " of ", options.ranks,
           " ranks; the rank must be from 0 to ranks - 1");
  DS_CHECK(!__builtin_mul_overflow(options.micro_batch, options.ranks, &batch_),
           Code::kInvalidArgument, "a batch of ", options.micro_batch, " x ", options.ranks,
           " samples is too large");
  const bool cyclic = options.kind == SamplerKind::kCyclic;
  const bool drops = cyclic || (options.kind == SamplerKind::kPasses && options.drop_last);
  DS_CHECK(!drops || total >= batch_, Code::kInvalidArgument, "the data set has ", total,
           " samples, fewer than one batch of ", batch_, " (micro batch ", options.micro_batch,
           " x ", options.ranks, " ranks), and ",
           cyclic ? "dataloader_type \"cyclic\"" : "dataloader_drop_last",
           " drops what fills no batch; give more data or a smaller batch");
  used_ = drops ? total - total % batch_ : total;
}

bool Sampler::has_left(int64_t consumed, int64_t samples) const noexcept {
  return options_.kind != SamplerKind::kSingle || samples <= options_.total_samples - consumed;
}

int64_t Sampler::epoch(int64_t consumed) const noexcept {
  return options_.kind == SamplerKind::kSingle ? 0 : consumed / used_;
}

const std::vector<int64_t>& Sampler::permutation(int64_t epoch, int64_t samples) {
  if (permuted_epoch_ != epoch) {
    permutation_ = torch_randperm(samples, static_cast<uint32_t>(epoch));
    permuted_epoch_ = epoch;
  }
  return permutation_;
}

void Sampler::take(int64_t consumed, std::span<int64_t> out) {
  constexpr int64_t kMost = int64_t{1} << 62;  // room to count on
  DS_CHECK(consumed >= 0 && consumed <= kMost, Code::kInvalidArgument, consumed,
           " consumed samples; there must be from 0 to ", kMost);
  DS_CHECK(static_cast<int64_t>(out.size()) == options_.micro_batch, Code::kInvalidArgument,
           "a micro batch has ", options_.micro_batch, " samples, the buffer ", out.size());
  const int64_t first = consumed + options_.rank * options_.micro_batch;
  switch (options_.kind) {
    case SamplerKind::kPasses:
      return take_passes(first, out);
    case SamplerKind::kSingle:
      DS_CHECK(has_left(consumed, batch_), Code::kState, consumed, " of the data set's ",
               options_.total_samples, " samples are consumed, and a batch has ", batch_);
      for (size_t i = 0; i < out.size(); ++i) out[i] = first + static_cast<int64_t>(i);
      return;
    case SamplerKind::kCyclic:
      return take_cyclic(consumed, out);
  }
}

// The data set comes shuffled: only later passes need an order, which depends on the pass alone.
void Sampler::take_passes(int64_t first, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t position = first + static_cast<int64_t>(i), pass = position / used_;
    out[i] = pass == 0
                 ? position
                 : permutation(pass, options_.total_samples)[static_cast<size_t>(position % used_)];
  }
}

void Sampler::take_cyclic(int64_t consumed, std::span<int64_t> out) {
  const int64_t micro = options_.micro_batch, offset = consumed % used_;
  DS_CHECK(offset % batch_ == 0, Code::kInvalidArgument, consumed,
           " consumed samples do not end on a batch of ", batch_, " in epochs of ", used_,
           " samples; resume with the batch size, ranks and data of the stored run, or with "
           "dataloader_type \"passes\"");
  const int64_t samples = options_.shard ? options_.total_samples / batch_ * micro
                                         : options_.total_samples / micro * micro;
  const std::vector<int64_t>& order = permutation(consumed / used_, samples);
  for (int64_t i = 0; i < micro; ++i) {
    // Sharded: a slice of the rank's own range. Else: every ranks-th of what is left.
    const int64_t at =
        options_.shard ? offset / options_.ranks + i : offset + options_.rank + i * options_.ranks;
    const int64_t base = options_.shard ? options_.rank * samples : 0;
    out[static_cast<size_t>(i)] = base + order[static_cast<size_t>(at)];
  }
}

}  // namespace ds
