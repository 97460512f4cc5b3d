// Fine-tuning examples packed into sequences: several short examples share one, each a segment.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/finetune_corpus.h"
#include "data/splits.h"

namespace ds {

enum class TooLong {
  kCut,   // keep the first tokens
  kSkip,  // leave the example out
};

struct PackingOptions {
  int64_t sequence_length = 0;
  // An example of n tokens takes n - 1 positions: all but its last token are read, all but its
  // first may be labels. It is too long when that is more than sequence_length.
  TooLong too_long = TooLong::kCut;
  bool pack = true;  // off: a sequence per example
  int32_t pad_id = 0;
  uint32_t seed = 1234;
  // Samples that must be there at least; nullopt: every sequence once.
  std::optional<int64_t> samples = std::nullopt;
};

struct PackingStats {
  int64_t examples = 0;        // in sequences
  int64_t cut = 0;             // of them, examples that were too long
  int64_t skipped = 0;         // too long and left out
  int64_t without_labels = 0;  // nothing to learn in what the cut left: left out
  int64_t sequences = 0;
  int64_t positions = 0;  // filled; the rest of sequences * sequence_length is padding
};

class PackedDataset final : public Dataset {
 public:
  // The examples [range.begin, range.end) of the corpus, shuffled by the seed, each put into the
  // first sequence that has room; the sequences are shuffled again, anew for every pass.
  PackedDataset(std::shared_ptr<const FinetuneCorpus> corpus, SequenceRange range,
                const PackingOptions& options, std::string name);

  int64_t sample_count() const noexcept override { return static_cast<int64_t>(order_.size()); }
  int64_t sequence_length() const noexcept override { return options_.sequence_length; }
  DatasetFields fields() const noexcept override { return {.segments = true, .mask = true}; }
  bool check_tokens(int64_t vocab, int64_t most) const override;
  void sample(int64_t index, const SampleView& out) const override;

  const PackingStats& stats() const noexcept { return stats_; }

 private:
  int64_t positions_of(int64_t example) const;
  std::vector<int64_t> choose(SequenceRange range);
  void pack(const std::vector<int64_t>& chosen);
  void shuffle_sequences(class NumpyRandom& random);

  std::shared_ptr<const FinetuneCorpus> corpus_;
  PackingOptions options_;
  std::string name_;
  std::vector<int64_t> examples_;  // sequence after sequence
  std::vector<int64_t> ends_;      // of each sequence in examples_
  std::vector<int64_t> order_;     // sample -> sequence
  PackingStats stats_;
};

}  // namespace ds
