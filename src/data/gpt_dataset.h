// GPT training samples of a token source: sample i is sequence_length + 1 tokens, of which the
// first sequence_length are the input (ids) and the last the labels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/dataset.h"
#include "data/gpt_index.h"
#include "data/splits.h"
#include "data/token_source.h"

namespace ds {

// What else a sample says of its tokens.
struct GptSampleOptions {
  std::optional<int32_t> end_id = std::nullopt;  // of documents; needed by the next two
  bool mask_end_loss = false;                    // what follows an end is no label
  bool part_documents = false;  // segments: tokens see their own document, positions restart
  int32_t pad_id = 0;           // behind the tokens of a sample that ends early
};

// Immutable; usable from many threads.
class GptDataset final : public Dataset {
 public:
  // The sequences [range.begin, range.end) of the source; `name` (train, valid, ...) is for errors.
  GptDataset(TokenSourcePtr source, SequenceRange range, const GptIndexOptions& options,
             std::string_view name, const GptSampleOptions& samples = {});

  int64_t sample_count() const noexcept override { return index_.sample_count(); }
  int64_t sequence_length() const noexcept override { return length_; }
  DatasetFields fields() const noexcept override { return {.segments = samples_.part_documents}; }
  void sample(int64_t i, const SampleView& out) const override;
  std::string place(int64_t index, int64_t position) const override;
  bool check_tokens(int64_t vocab, int64_t most) const override;

  // `out` has sequence_length() + 1 elements. Gives how many tokens there are: all, but for a
  // sample that ends early, whose rest is padding.
  int64_t sample(int64_t i, std::span<int32_t> out) const;
  void sample(int64_t i, std::span<int64_t> out) const;

  const GptIndex& index() const noexcept { return index_; }

 private:
  TokenSourcePtr source_;
  SequenceRange range_;
  int64_t length_;
  std::string name_;
  GptSampleOptions samples_;
  GptIndex index_;
};

// One part of a split; null when the part has no sequences.
std::shared_ptr<const GptDataset> make_gpt_dataset(
    const TokenSourcePtr& source, std::string_view split, Split part,
    const GptIndexOptions& options, SplitRounding rounding = SplitRounding::kMegatron,
    const GptSampleOptions& samples = {});

}  // namespace ds
