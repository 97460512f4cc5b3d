// The order of GPT training samples: which sequences follow each other, where each sample begins,
// and in which order samples are drawn. The same numbers as Megatron for the same seed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace ds {

struct GptIndexOptions {
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  // Samples that must be there at least; nullopt: one pass over the data.
  std::optional<int64_t> samples = std::nullopt;
  // Passes over the data, instead of as many as the samples need.
  std::optional<int64_t> epochs = std::nullopt;
  // The tokens behind the last whole sample are one more sample, which ends early.
  bool keep_partial = false;
};

struct GptIndex {
  std::vector<int32_t> documents;        // sequence numbers, epoch after epoch, shuffled
  std::vector<int64_t> start_positions;  // into documents; one more than there are samples
  std::vector<int32_t> start_offsets;    // token within that sequence
  std::vector<int64_t> order;            // sample i is the order[i]-th of the starts
  int64_t epochs = 0;
  bool separate_last_epoch = false;

  int64_t sample_count() const noexcept { return static_cast<int64_t>(order.size()); }
};

// `sizes` are the tokens of the sequences first_sequence, first_sequence + 1, ...; `what` names the
// data in errors.
GptIndex build_gpt_index(std::span<const int32_t> sizes, int64_t first_sequence,
                         const GptIndexOptions& options, std::string_view what);

}  // namespace ds
