#include "data/mlm_sample.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"

namespace ds {
namespace internal {
namespace {

constexpr int64_t kMaxMlmSamples = int64_t{1} << 32;  // 24 bytes each

}  // namespace

SentenceMapper::SentenceMapper(const SentenceMapOptions& options)
    : options_(options), random_(options.seed) {
  DS_CHECK(options.target_length >= 2 && options.target_length <= INT32_MAX, Code::kInvalidArgument,
           "samples of ", options.target_length, " tokens without the special ones; at least 2");
  DS_CHECK(options.short_probability >= 0 && options.short_probability <= 1, Code::kInvalidArgument,
           "the probability of short samples is ", options.short_probability,
           "; it must be from 0 to 1");
  DS_CHECK(options.minimum_sentences >= 1, Code::kInvalidArgument, "samples of at least ",
           options.minimum_sentences, " sentences; at least 1");
  DS_CHECK(options.epochs || options.samples, Code::kInvalidArgument,
           "a sentence map needs a number of epochs or of samples");
  DS_CHECK(options.epochs.value_or(1) >= 1 && options.samples.value_or(1) >= 1 &&
               options.samples.value_or(1) <= kMaxMlmSamples,
           Code::kInvalidArgument, "a sentence map of ", options.samples.value_or(1),
           " samples in ", options.epochs.value_or(1), " epochs; from 1 to ", kMaxMlmSamples,
           " samples can be mapped");
  if (options.short_probability > 0) {
    const double ratio = std::round(1.0 / options.short_probability);
    short_ratio_ = static_cast<int64_t>(std::min(ratio, 4294967296.0));
  }
}

bool SentenceMapper::wants_epoch(int64_t epoch) const {
  return epoch < options_.epochs.value_or(INT64_MAX) &&
         static_cast<int64_t>(spans_.size()) < options_.samples.value_or(INT64_MAX);
}

int64_t SentenceMapper::draw_target() {
  if (short_ratio_ == 0) return options_.target_length;
  const auto draw = static_cast<int64_t>(random_());
  if (draw % short_ratio_ == 0) return 2 + draw % (options_.target_length - 1);
  return options_.target_length;
}

void SentenceMapper::begin_document(int64_t first, int64_t end) {
  start_ = first;
  remaining_ = end - first;
  length_ = count_ = 0;
  target_ = draw_target();
}

void SentenceMapper::add_sentence(int64_t index, int64_t size) {
  length_ += size;
  ++count_;
  --remaining_;
  // One last sentence alone would be too few for another sample.
  const bool full = length_ >= target_ && remaining_ > 1 && count_ >= options_.minimum_sentences;
  if (!full && remaining_ != 0) return;
  DS_CHECK(static_cast<int64_t>(spans_.size()) < kMaxMlmSamples, Code::kInvalidArgument,
           "more than ", kMaxMlmSamples, " samples; ask for fewer epochs");
  spans_.push_back({start_, index + 1, target_});
  start_ = index + 1;
  length_ = count_ = 0;
  target_ = draw_target();
}

std::vector<SentenceSpan> SentenceMapper::finish() {
  if (options_.shuffle) {
    std::mt19937_64 random(uint64_t{options_.seed} + 1);
    for (size_t i = spans_.size(); i-- > 1;) {
      std::swap(spans_[i], spans_[static_cast<size_t>(random() % (i + 1))]);
    }
  }
  return std::move(spans_);
}

}  // namespace internal

namespace {

using Tokens = std::vector<int32_t>;

constexpr size_t kLongestSpan = 3;  // words
constexpr double kMaskShare = 0.8;  // of the hidden tokens; half of the others stay, half change

// Spans of 1, 2, 3 words with P(n) proportional to 1 / n.
size_t draw_span(NumpyRandom& random) {
  // Normalised twice, as the original does: the last bit decides the odd draw.
  static constexpr std::array<double, kLongestSpan> kShares = [] {
    std::array<double, kLongestSpan> shares{};
    for (size_t n = 0; n < kLongestSpan; ++n) shares[n] = 1.0 / static_cast<double>(n + 1);
    for (int time = 0; time < 2; ++time) {
      double sum = 0;
      for (const double share : shares) sum += share;
      for (double& share : shares) share /= sum;
    }
    return shares;
  }();
  std::array<double, kLongestSpan> sums{};
  double sum = 0;
  for (size_t n = 0; n < kLongestSpan; ++n) sums[n] = sum += kShares[n];
  const double draw = random.random();
  for (size_t n = 0; n + 1 < kLongestSpan; ++n) {
    if (sums[n] / sums.back() > draw) return n + 1;
  }
  return kLongestSpan;
}

// Shortens the longer one, B when they are equal, a token at a time at either end.
void shorten(Tokens& a, Tokens& b, int64_t target, NumpyRandom& random) {
  struct Window {
    size_t begin;
    size_t end;
    size_t size() const { return end - begin; }
  };
  Window in_a{0, a.size()}, in_b{0, b.size()};
  while (static_cast<int64_t>(in_a.size() + in_b.size()) > target) {
    Window& longer = in_a.size() > in_b.size() ? in_a : in_b;
    if (random.random() < 0.5) {
      ++longer.begin;
    } else {
      --longer.end;
    }
  }
  const auto keep = [](Tokens& tokens, Window window) {
    tokens.resize(window.end);
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(window.begin));
  };
  keep(a, in_a);
  keep(b, in_b);
}

// Words as runs of neighbouring positions, but for the special tokens between them.
std::vector<std::vector<int64_t>> words_of(const Tokens& tokens, const MlmVocab& vocab) {
  std::vector<std::vector<int64_t>> words;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == vocab.cls || tokens[i] == vocab.sep) continue;
    const bool joins = !words.empty() && vocab.continues[static_cast<size_t>(tokens[i])];
    if (!joins) words.emplace_back();
    words.back().push_back(static_cast<int64_t>(i));
  }
  return words;
}

void hide_tokens(MlmSample& sample, double probability, int64_t target, const MlmVocab& vocab,
                 NumpyRandom& random) {
  if (probability == 0) return;
  const Tokens original = sample.tokens;
  const std::vector<std::vector<int64_t>> words = words_of(original, vocab);
  const double wanted =
      std::max(1.0, std::nearbyint(static_cast<double>(original.size()) * probability));
  const double number = std::min(probability * static_cast<double>(target), wanted);
  std::vector<size_t> starts(words.size());
  for (size_t i = 0; i < starts.size(); ++i) starts[i] = i;
  random.shuffle(std::span(starts));
  std::vector<bool> hidden(original.size(), false);
  std::vector<int64_t> span;
  for (const size_t start : starts) {
    const size_t done = sample.masked.size();
    if (static_cast<double>(done) >= number) break;
    // Longer spans than the number allows give way to shorter ones.
    for (size_t n = draw_span(random); n > 0; --n) {
      span.clear();
      for (size_t w = start; w < std::min(start + n, words.size()); ++w) {
        span.insert(span.end(), words[w].begin(), words[w].end());
      }
      if (static_cast<double>(done + span.size()) <= number) break;
    }
    if (static_cast<double>(done + span.size()) > number) continue;
    const auto is_hidden = [&](int64_t i) { return hidden[static_cast<size_t>(i)]; };
    if (std::any_of(span.begin(), span.end(), is_hidden)) continue;
    for (const int64_t position : span) {
      const auto i = static_cast<size_t>(position);
      hidden[i] = true;
      sample.masked.push_back({position, original[i]});
      if (random.random() < kMaskShare) {
        sample.tokens[i] = vocab.mask;
      } else if (random.random() >= 0.5) {
        sample.tokens[i] = static_cast<int32_t>(random.randint(0, vocab.size()));
      }
    }
  }
  std::sort(
      sample.masked.begin(), sample.masked.end(),
      [](const MaskedPosition& a, const MaskedPosition& b) { return a.position < b.position; });
}

}  // namespace

MlmVocab mlm_vocab(const Tokenizer& tokenizer) {
  const auto need = [&](const char* token) {
    const auto found = tokenizer.id(token);
    DS_CHECK(found, Code::kInvalidArgument, "masked samples need the token \"", token,
             "\", which the tokenizer does not have; use one of BERT");
    return *found;
  };
  MlmVocab vocab{need("[CLS]"), need("[SEP]"), need("[MASK]"), need("[PAD]"), {}};
  vocab.continues.resize(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto token = tokenizer.token(id);
    vocab.continues[static_cast<size_t>(id)] = token && token->starts_with("##");
  }
  return vocab;
}

MlmSample build_mlm_sample(std::span<const std::vector<int32_t>> sentences, int64_t target,
                           double mask_probability, bool pair, const MlmVocab& vocab,
                           NumpyRandom& random) {
  const auto count = static_cast<int64_t>(sentences.size());
  DS_CHECK(count >= (pair ? 2 : 1), Code::kInvalidArgument, "a sample of ", count,
           " sentences; it needs ", pair ? "two" : "one");
  DS_CHECK(mask_probability >= 0 && mask_probability <= 1, Code::kInvalidArgument,
           "the masking probability is ", mask_probability, "; it must be from 0 to 1");
  DS_CHECK(target >= 1, Code::kInvalidArgument, "a sample of ", target, " tokens");
  int64_t cut = pair ? 1 : count;
  if (pair && count >= 3) cut = random.randint(1, count);
  Tokens a, b;
  for (int64_t i = 0; i < count; ++i) {
    const Tokens& sentence = sentences[static_cast<size_t>(i)];
    for (const int32_t token : sentence) {
      DS_CHECK(token >= 0 && token < vocab.size(), Code::kInvalidArgument, "token ", token,
               " is outside the vocabulary of ", vocab.size(), " tokens");
    }
    Tokens& part = i < cut ? a : b;
    part.insert(part.end(), sentence.begin(), sentence.end());
  }
  MlmSample sample;
  if (pair && random.random() < 0.5) {
    sample.swapped = true;
    a.swap(b);
  }
  shorten(a, b, target, random);
  sample.tokens.push_back(vocab.cls);
  sample.tokens.insert(sample.tokens.end(), a.begin(), a.end());
  sample.tokens.push_back(vocab.sep);
  sample.types.assign(sample.tokens.size(), 0);
  if (!b.empty()) {
    sample.tokens.insert(sample.tokens.end(), b.begin(), b.end());
    sample.tokens.push_back(vocab.sep);
  }
  sample.types.resize(sample.tokens.size(), 1);
  hide_tokens(sample, mask_probability, target, vocab, random);
  return sample;
}

}  // namespace ds
