#include "data/sampler.h"

#include "base/error.h"
#include "data/numpy_random.h"

namespace ds {

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  DS_CHECK(options.kind == SamplerKind::kSingle || options.kind == SamplerKind::kCyclic,
           Code::kInvalidArgument, "unknown sampler kind ", static_cast<int64_t>(options.kind));
  DS_CHECK(options.total_samples > 0, Code::kInvalidArgument, "a sampler over ",
           options.total_samples, " samples; there must be at least one");
  DS_CHECK(options.micro_batch > 0, Code::kInvalidArgument, "the micro batch is ",
           options.micro_batch, "; it must be at least 1");
  DS_CHECK(options.ranks > 0 && options.rank >= 0 && options.rank < options.ranks,
           Code::kInvalidArgument, "rank ", options.rank, " of ", options.ranks,
           " ranks; the rank must be from 0 to ranks - 1");
  DS_CHECK(!__builtin_mul_overflow(options.micro_batch, options.ranks, &batch_),
           Code::kInvalidArgument, "a batch of ", options.micro_batch, " x ", options.ranks,
           " samples is too large");
  if (options.kind == SamplerKind::kCyclic) {
    DS_CHECK(batch_ <= options.total_samples, Code::kInvalidArgument, "a batch of ", batch_,
             " samples (micro batch ", options.micro_batch, " x ", options.ranks,
             " ranks) of only ", options.total_samples, "; give more data or a smaller batch");
    active_ = options.total_samples - options.total_samples % batch_;
  }
  move_to(options.consumed_samples);
}

void Sampler::move_to(int64_t consumed) {
  constexpr int64_t kMost = int64_t{1} << 62;  // room to count on
  DS_CHECK(consumed >= 0 && consumed <= kMost, Code::kInvalidArgument, "consumed_samples is ",
           consumed, "; it must be from 0 to ", kMost);
  if (options_.kind == SamplerKind::kSingle) {
    DS_CHECK(consumed < options_.total_samples, Code::kInvalidArgument, consumed, " of ",
             options_.total_samples, " samples are consumed: none are left to train on");
  } else {
    DS_CHECK((consumed % active_) % batch_ == 0, Code::kInvalidArgument, consumed,
             " consumed samples do not end on a batch of ", batch_, " in epochs of ", active_,
             " samples; resume with the batch size and the data of the stored run");
  }
  consumed_ = consumed;
  permuted_epoch_ = -1;
}

int64_t Sampler::epoch() const noexcept {
  return options_.kind == SamplerKind::kCyclic ? consumed_ / active_ : 0;
}

void Sampler::begin_epoch() {
  if (permuted_epoch_ == epoch()) return;
  const int64_t n = options_.shard
                        ? options_.total_samples / batch_ * options_.micro_batch
                        : options_.total_samples / options_.micro_batch * options_.micro_batch;
  permutation_ = torch_randperm(n, static_cast<uint32_t>(epoch()));
  permuted_epoch_ = epoch();
}

bool Sampler::next(std::span<int64_t> out) {
  const int64_t micro = options_.micro_batch;
  DS_CHECK(static_cast<int64_t>(out.size()) == micro, Code::kInvalidArgument, "a micro batch has ",
           micro, " samples, the buffer ", out.size());
  if (options_.kind == SamplerKind::kSingle) {
    if (batch_ > options_.total_samples - consumed_) return false;
    const int64_t first = consumed_ + options_.rank * micro;
    for (int64_t i = 0; i < micro; ++i) out[static_cast<size_t>(i)] = first + i;
  } else {
    begin_epoch();
    const int64_t offset = consumed_ % active_;
    for (int64_t i = 0; i < micro; ++i) {
      // Sharded: a slice of the rank's own range. Else: every ranks-th of what is left.
      const int64_t at = options_.shard ? offset / options_.ranks + i
                                        : offset + options_.rank + i * options_.ranks;
      const int64_t base =
          options_.shard ? options_.rank * static_cast<int64_t>(permutation_.size()) : 0;
      out[static_cast<size_t>(i)] = base + permutation_[static_cast<size_t>(at)];
    }
  }
  consumed_ += batch_;
  return true;
}

Sampler::State Sampler::state() const noexcept {
  return {static_cast<int64_t>(options_.kind), options_.total_samples, consumed_,
          options_.shard ? 1 : 0};
}

void Sampler::restore(const State& state) {
  DS_CHECK(state[0] == static_cast<int64_t>(options_.kind) &&
               (options_.kind == SamplerKind::kSingle || state[3] == (options_.shard ? 1 : 0)),
           Code::kInvalidArgument,
           "the stored sampler is of another kind; resume with the kind and sharding of the stored "
           "run");
  DS_CHECK(state[1] == options_.total_samples, Code::kInvalidArgument,
           "the stored sampler went over ", state[1], " samples, this one goes over ",
           options_.total_samples, "; resume with the same data, sequence length and seed");
  // A single sampler may be stored at its very end.
  if (options_.kind == SamplerKind::kSingle && state[2] == options_.total_samples) {
    consumed_ = state[2];
    return;
  }
  move_to(state[2]);
}

}  // namespace ds
