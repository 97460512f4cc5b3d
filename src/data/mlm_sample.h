// Masked-language-model samples as Megatron builds them for BERT: which sentences a sample is made
// of, and which of its tokens are hidden. The same numbers for the same seeds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "data/numpy_random.h"
#include "tokenizer/tokenizer.h"

namespace ds {

// Sentences [first, end), to be shortened to `target` tokens.
struct SentenceSpan {
  int64_t first = 0;
  int64_t end = 0;
  int64_t target = 0;
  bool operator==(const SentenceSpan&) const = default;
};

struct SentenceMapOptions {
  int64_t target_length = 0;  // tokens of a sample without its special ones
  double short_probability = 0.1;
  int64_t minimum_sentences = 2;
  // Passes end at the first of these that is reached; samples are counted between passes only.
  std::optional<int64_t> epochs = std::nullopt;
  std::optional<int64_t> samples = std::nullopt;
  uint32_t seed = 1234;
  bool shuffle = true;
};

// `documents` are the first sentence of each document and the end; `size_of(i)` the tokens of
// sentence i. Documents with too few sentences, or with one of more than 512 tokens among others,
// are left out.
template <class SizeOf>
std::vector<SentenceSpan> map_sentences(std::span<const int64_t> documents, const SizeOf& size_of,
                                        const SentenceMapOptions& options);

// What masking has to know about a vocabulary.
struct MlmVocab {
  int32_t cls = 0;
  int32_t sep = 0;
  int32_t mask = 0;
  int32_t pad = 0;
  std::vector<bool> continues;  // by id: a "##" piece, which belongs to the word before it

  int32_t size() const noexcept { return static_cast<int32_t>(continues.size()); }
};
// From a tokenizer with BERT's special tokens; Error(kInvalidArgument) names a missing one.
MlmVocab mlm_vocab(const Tokenizer& tokenizer);

struct MaskedPosition {
  int64_t position = 0;
  int32_t label = 0;  // the token that was there
};

struct MlmSample {
  std::vector<int32_t> tokens;  // [CLS] A [SEP] B [SEP], masked
  std::vector<int32_t> types;
  std::vector<MaskedPosition> masked;  // by position
  bool swapped = false;                // B came before A in the text
};

// `sentences` are at least two when `pair` is set; else all of them are A, and there is no B.
MlmSample build_mlm_sample(std::span<const std::vector<int32_t>> sentences, int64_t target,
                           double mask_probability, bool pair, const MlmVocab& vocab,
                           NumpyRandom& random);

namespace internal {
class SentenceMapper {
 public:
  explicit SentenceMapper(const SentenceMapOptions& options);
  bool wants_epoch(int64_t epoch) const;
  void begin_document(int64_t first, int64_t end);
  void add_sentence(int64_t index, int64_t size);
  std::vector<SentenceSpan> finish();
  bool empty() const noexcept { return spans_.empty(); }

 private:
  int64_t draw_target();

  SentenceMapOptions options_;
  int64_t short_ratio_ = 0;
  std::mt19937 random_;
  std::vector<SentenceSpan> spans_;
  int64_t start_ = 0, remaining_ = 0, length_ = 0, count_ = 0, target_ = 0;
};
inline constexpr int64_t kLongSentence = 512;
}  // namespace internal

template <class SizeOf>
std::vector<SentenceSpan> map_sentences(std::span<const int64_t> documents, const SizeOf& size_of,
                                        const SentenceMapOptions& options) {
  internal::SentenceMapper mapper(options);
  for (int64_t epoch = 0; mapper.wants_epoch(epoch); ++epoch) {
    for (size_t d = 0; d + 1 < documents.size(); ++d) {
      const int64_t first = documents[d], end = documents[d + 1];
      if (end - first < options.minimum_sentences) continue;
      bool long_one = false;
      for (int64_t i = first; end - first > 1 && i < end && !long_one; ++i) {
        long_one = size_of(i) > internal::kLongSentence;
      }
      if (long_one) continue;
      mapper.begin_document(first, end);
      for (int64_t i = first; i < end; ++i) mapper.add_sentence(i, size_of(i));
    }
    if (mapper.empty()) break;
  }
  return mapper.finish();
}

}  // namespace ds
