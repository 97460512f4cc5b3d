// Which samples each rank takes in each micro batch. All state is the number of samples that all
// ranks have consumed, so a run resumes exactly where it stopped.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace ds {

enum class SamplerKind {
  kPasses,  // pass after pass, the first in the data set's order, every later one in a new order
  kSingle,  // Megatron's `single`: once through, in order; a short tail is dropped
  kCyclic,  // Megatron's `cyclic`: a new permutation every epoch, without end
};
const char* sampler_kind_name(SamplerKind kind);
std::optional<SamplerKind> sampler_kind(std::string_view name);

struct SamplerOptions {
  SamplerKind kind = SamplerKind::kPasses;
  int64_t total_samples = 0;
  int64_t micro_batch = 1;  // samples per rank
  int64_t rank = 0;
  int64_t ranks = 1;
  bool drop_last = false;  // passes: each ends at its last whole batch
  // Cyclic: every rank permutes a range of its own, instead of taking turns in one permutation.
  bool shard = true;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);

  // This rank's part of the micro batch that follows `consumed` samples of all ranks; `out` has
  // micro_batch elements. Only what has_left() may be asked for.
  void take(int64_t consumed, std::span<int64_t> out);
  // Whether `samples` more follow `consumed` ones; only `single` ends.
  bool has_left(int64_t consumed, int64_t samples) const noexcept;
  // Of the sample that follows `consumed` ones; always 0 for `single`.
  int64_t epoch(int64_t consumed) const noexcept;

  const SamplerOptions& options() const noexcept { return options_; }

 private:
  void take_passes(int64_t first, std::span<int64_t> out);
  void take_cyclic(int64_t consumed, std::span<int64_t> out);
  const std::vector<int64_t>& permutation(int64_t epoch, int64_t samples);

  SamplerOptions options_;
  int64_t batch_ = 0;            // samples of all ranks in a micro batch
  int64_t used_ = 0;             // samples per epoch
  int64_t permuted_epoch_ = -1;  // whose order is in permutation_
  std::vector<int64_t> permutation_;
};

}  // namespace ds
