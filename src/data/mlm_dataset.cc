#include "data/mlm_dataset.h"

#include <algorithm>

#include "base/error.h"

namespace ds {
namespace {

constexpr int64_t kSpecialTokens = 3;  // [CLS] A [SEP] B [SEP]

}  // namespace

MlmDataset::MlmDataset(SentenceCorpus corpus, SequenceRange range, MlmVocab vocab,
                       const MlmOptions& options, std::string name)
    : corpus_(std::move(corpus)),
      range_(range),
      vocab_(std::move(vocab)),
      options_(options),
      name_(std::move(name)) {
  DS_CHECK(corpus_.sentences != nullptr, Code::kInvalidArgument, name_, " has no sentences");
  DS_CHECK(options.sequence_length >= kSpecialTokens + 2 && options.sequence_length < INT32_MAX,
           Code::kInvalidArgument, name_, ": the sequence length is ", options.sequence_length,
           "; masked samples need at least ", kSpecialTokens + 2);
  DS_CHECK(options.mask_probability > 0 && options.mask_probability <= 1, Code::kInvalidArgument,
           name_, ": the masking probability is ", options.mask_probability,
           "; it must be above 0 and at most 1");
  DS_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= corpus_.document_count(),
           Code::kInvalidArgument, name_, ": documents ", range.begin, " to ", range.end, " of ",
           corpus_.document_count());
  SentenceMapOptions map;
  map.target_length = options.sequence_length - kSpecialTokens;
  map.short_probability = options.short_probability;
  map.minimum_sentences = options.pairs ? 2 : 1;
  map.seed = options.seed;
  map.samples = options.samples;
  if (!options.samples) map.epochs = 1;
  const auto bounds =
      std::span(corpus_.documents)
          .subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()) + 1);
  const TokenSource& sentences = *corpus_.sentences;
  spans_ = map_sentences(
      bounds, [&](int64_t i) { return sentences.sequence_size(i); }, map);
  DS_CHECK(!spans_.empty(), Code::kInvalidArgument, name_, ": none of its ", range.size(),
           " documents has ", map.minimum_sentences,
           " sentences and none of more than 512 tokens; give the sentences one by one, or turn "
           "pairs off");
}

MlmSample MlmDataset::build(int64_t index) const {
  DS_CHECK(index >= 0 && index < sample_count(), Code::kInvalidArgument, name_, ": sample ", index,
           " does not exist; there are ", sample_count());
  const SentenceSpan& span = spans_[static_cast<size_t>(index)];
  std::vector<std::vector<int32_t>> sentences;
  for (int64_t i = span.first; i < span.end; ++i) {
    std::vector<int32_t>& tokens = sentences.emplace_back();
    tokens.resize(static_cast<size_t>(corpus_.sentences->sequence_size(i)));
    corpus_.sentences->read(i, 0, tokens);
  }
  NumpyRandom random(options_.seed + static_cast<uint32_t>(index));
  return build_mlm_sample(sentences, span.target, options_.mask_probability, options_.pairs, vocab_,
                          random);
}

void MlmDataset::sample(int64_t index, const SampleView& out) const {
  check_sample_view(*this, index, out, name_);
  const MlmSample sample = build(index);
  const size_t length = sample.tokens.size();
  std::fill(out.labels.begin(), out.labels.end(), kNoLabel);
  for (const MaskedPosition& masked : sample.masked) {
    out.labels[static_cast<size_t>(masked.position)] = masked.label;
  }
  for (size_t i = 0; i < out.ids.size(); ++i) {
    out.ids[i] = i < length ? sample.tokens[i] : vocab_.pad;
    out.token_types[i] = i < length ? sample.types[i] : 0;
    out.mask[i] = i < length ? 1 : 0;
  }
  if (!out.sentence_order.empty()) out.sentence_order[0] = sample.swapped ? 1 : 0;
}

bool MlmDataset::check_tokens(int64_t vocab, int64_t most) const {
  DS_CHECK(vocab_.size() <= vocab, Code::kInvalidArgument, name_,
           ": hidden tokens become any of the ", "tokenizer's ", vocab_.size(),
           ", the model's vocabulary has ", vocab);
  const int64_t first = corpus_.documents[static_cast<size_t>(range_.begin)];
  const int64_t end = corpus_.documents[static_cast<size_t>(range_.end)];
  int64_t tokens = 0;
  for (int64_t i = first; i < end && tokens <= most; ++i) {
    tokens += corpus_.sentences->sequence_size(i);
  }
  if (tokens > most) return false;
  corpus_.sentences->check_tokens(first, end, vocab);
  return true;
}

}  // namespace ds
