// Masked-language-model samples for BERT from documents of sentences.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/mlm_sample.h"
#include "data/sentence_corpus.h"

namespace ds {

struct MlmOptions {
  int64_t sequence_length = 0;
  double mask_probability = 0.15;
  double short_probability = 0.1;
  // Samples are pairs of texts, which are sometimes swapped (sentence order prediction); off: one
  // text, and documents of one sentence are used, too.
  bool pairs = true;
  uint32_t seed = 1234;
  // Samples that must be there at least; nullopt: one pass over the documents.
  std::optional<int64_t> samples = std::nullopt;
};

// Labels are the hidden tokens at their own positions, kNoLabel elsewhere.
class MlmDataset final : public Dataset {
 public:
  // The documents [range.begin, range.end) of the corpus.
  MlmDataset(SentenceCorpus corpus, SequenceRange range, MlmVocab vocab, const MlmOptions& options,
             std::string name);

  int64_t sample_count() const noexcept override { return static_cast<int64_t>(spans_.size()); }
  int64_t sequence_length() const noexcept override { return options_.sequence_length; }
  DatasetFields fields() const noexcept override {
    return {.token_types = true, .mask = true, .sentence_order = options_.pairs};
  }
  void sample(int64_t index, const SampleView& out) const override;
  bool check_tokens(int64_t vocab, int64_t most) const override;

  // The sample before it is padded.
  MlmSample build(int64_t index) const;
  const std::vector<SentenceSpan>& spans() const noexcept { return spans_; }

 private:
  SentenceCorpus corpus_;
  SequenceRange range_;  // documents
  MlmVocab vocab_;
  MlmOptions options_;
  std::string name_;
  std::vector<SentenceSpan> spans_;
};

}  // namespace ds
