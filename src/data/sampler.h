// Which samples each rank takes at each step: Megatron's `single` (once through, in order) and
// `cyclic` (a new permutation every epoch, without end) samplers. All state is the number of
// samples consumed by all ranks, so a run resumes exactly where it stopped.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace ds {

enum class SamplerKind : int64_t { kSingle = 0, kCyclic = 1 };

struct SamplerOptions {
  SamplerKind kind = SamplerKind::kSingle;
  int64_t total_samples = 0;
  int64_t consumed_samples = 0;
  int64_t micro_batch = 1;  // samples per rank and batch
  int64_t rank = 0;
  int64_t ranks = 1;
  // Cyclic: every rank permutes a range of its own, instead of taking turns in one permutation.
  bool shard = true;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);

  // The next micro batch of this rank. False at the end: only `single` ends; a short tail is
  // dropped. `out` has micro_batch elements.
  bool next(std::span<int64_t> out);

  int64_t consumed_samples() const noexcept { return consumed_; }
  // Epoch of the next batch; always 0 for `single`.
  int64_t epoch() const noexcept;

  // What a checkpoint stores: kind, total samples, consumed samples, sharding.
  using State = std::array<int64_t, 4>;
  State state() const noexcept;
  // Goes on from a stored state, which must come from a sampler over the same samples; the micro
  // batch and the ranks may differ.
  void restore(const State& state);

 private:
  void move_to(int64_t consumed);
  void begin_epoch();

  SamplerOptions options_;
  int64_t batch_ = 0;   // samples of all ranks
  int64_t active_ = 0;  // cyclic: samples per epoch
  int64_t consumed_ = 0;
  int64_t permuted_epoch_ = -1;  // whose order is in permutation_
  std::vector<int64_t> permutation_;
};

}  // namespace ds
