// Masked-language-model data: published sentence maps and samples, and properties of samples from
// random text.
#include "data/mlm_dataset.h"

#include <map>

#include "data/dataset_spec.h"
#include "data/indexed_dataset.h"
#include "fresh_seed.h"
#include "test_paths.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

using TokenList = std::vector<int32_t>;

std::vector<SentenceSpan> golden_map(bool shuffle) {
  const std::vector<int64_t> documents = {0, 6, 7, 11, 14};
  const std::vector<int64_t> lengths = {5, 7, 4, 6, 3, 2, 9, 3, 8, 5, 4, 6, 2, 7};
  SentenceMapOptions options;
  options.target_length = 10;
  options.short_probability = 0.5;
  options.epochs = 3;
  options.samples = 12;
  options.shuffle = shuffle;
  return map_sentences(
      documents, [&](int64_t i) { return lengths[static_cast<size_t>(i)]; }, options);
}

TEST(SentenceMap, Golden) {
  const std::vector<SentenceSpan> before = {{0, 2, 10}, {2, 4, 10},   {4, 6, 5},   {7, 9, 10},
                                            {9, 11, 9}, {11, 14, 10}, {0, 2, 10},  {2, 4, 10},
                                            {4, 6, 10}, {7, 9, 6},    {9, 11, 10}, {11, 14, 8}};
  const std::vector<SentenceSpan> after = {{11, 14, 10}, {7, 9, 6},  {9, 11, 10}, {4, 6, 5},
                                           {4, 6, 10},   {2, 4, 10}, {2, 4, 10},  {11, 14, 8},
                                           {0, 2, 10},   {9, 11, 9}, {0, 2, 10},  {7, 9, 10}};
  EXPECT_EQ(golden_map(false), before);
  EXPECT_EQ(golden_map(true), after);
}

TEST(SentenceMap, EverySentenceOnceAnEpoch) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    std::vector<int64_t> documents = {0}, sizes;
    for (uint32_t d = 1 + random() % 20; d > 0; --d) {
      documents.push_back(documents.back() + static_cast<int64_t>(random() % 9));
    }
    for (int64_t i = 0; i < documents.back(); ++i) {
      sizes.push_back(random() % 60 == 0 ? 513 : 1 + random() % 40);
    }
    SentenceMapOptions options;
    options.target_length = 2 + random() % 60;
    options.minimum_sentences = 1 + random() % 2;
    options.epochs = 2;
    options.seed = static_cast<uint32_t>(random());
    std::map<int64_t, int> used;
    const auto spans = map_sentences(
        documents, [&](int64_t i) { return sizes[static_cast<size_t>(i)]; }, options);
    for (const SentenceSpan& span : spans) {
      ASSERT_GE(span.end - span.first, options.minimum_sentences);
      ASSERT_GE(span.target, 2);
      ASSERT_LE(span.target, options.target_length);
      for (int64_t i = span.first; i < span.end; ++i) ++used[i];
    }
    for (size_t d = 0; d + 1 < documents.size(); ++d) {
      const int64_t first = documents[d], end = documents[d + 1];
      bool skipped = end - first < options.minimum_sentences;
      for (int64_t i = first; end - first > 1 && i < end; ++i) {
        skipped = skipped || sizes[static_cast<size_t>(i)] > 512;
      }
      for (int64_t i = first; i < end; ++i) ASSERT_EQ(used[i], skipped ? 0 : 2);
    }
  }
}

// 0 PAD 1 UNK 2 CLS 3 SEP 4 MASK 5 the 6 cat 7 sat 8 ##s 9 ##ing 10 on 11 a 12 mat 13 dog 14 ran
// 15 ##ner 16 fast 17 . 18 red 19 sun
MlmVocab golden_vocab() {
  MlmVocab vocab{2, 3, 4, 0, std::vector<bool>(20, false)};
  for (const size_t id : {8u, 9u, 15u}) vocab.continues[id] = true;
  return vocab;
}

const std::vector<TokenList> kSentences = {
    {5, 6, 8, 7, 10}, {11, 18, 12, 17}, {5, 13, 14, 15, 16, 17}, {19, 7, 9, 17}};

MlmSample golden_sample(uint32_t seed, int64_t target, double probability) {
  NumpyRandom random(seed);
  return build_mlm_sample(kSentences, target, probability, true, golden_vocab(), random);
}

TokenList positions_of(const MlmSample& sample) {
  TokenList out;
  for (const MaskedPosition& masked : sample.masked) {
    out.push_back(static_cast<int32_t>(masked.position));
  }
  return out;
}

TokenList unmasked(const MlmSample& sample) {
  TokenList out = sample.tokens;
  for (const MaskedPosition& masked : sample.masked) {
    out[static_cast<size_t>(masked.position)] = masked.label;
  }
  return out;
}

TEST(MlmSample, Golden) {
  const MlmSample long_one = golden_sample(1234, 29, 0.15);
  EXPECT_FALSE(long_one.swapped);
  EXPECT_EQ(unmasked(long_one), (TokenList{2,  5,  6,  8,  7,  10, 11, 18, 12, 17, 5,
                                           13, 14, 15, 16, 17, 3,  19, 7,  9,  17, 3}));
  EXPECT_EQ(positions_of(long_one), (TokenList{4, 5, 6}));
  for (const size_t i : {4u, 5u, 6u}) EXPECT_EQ(long_one.tokens[i], 4);
  EXPECT_EQ(long_one.types,
            (TokenList{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1}));

  const MlmSample cut = golden_sample(1234, 16, 0.15);
  EXPECT_EQ(unmasked(cut),
            (TokenList{2, 5, 6, 8, 7, 10, 11, 18, 12, 17, 5, 13, 14, 3, 19, 7, 9, 17, 3}));
  EXPECT_EQ(positions_of(cut), (TokenList{5, 6}));

  const MlmSample swapped = golden_sample(1240, 16, 0.3);
  EXPECT_TRUE(swapped.swapped);
  EXPECT_EQ(swapped.tokens,
            (TokenList{2, 18, 12, 17, 5, 13, 14, 15, 16, 4, 1, 4, 3, 4, 6, 8, 7, 10, 3}));
  EXPECT_EQ(positions_of(swapped), (TokenList{9, 10, 11, 13}));
  TokenList labels;
  for (const MaskedPosition& masked : swapped.masked) labels.push_back(masked.label);
  EXPECT_EQ(labels, (TokenList{17, 19, 7, 5}));

  EXPECT_EQ(positions_of(golden_sample(7, 29, 0.3)), (TokenList{2, 3, 4, 8, 9, 18, 19}));
}

TEST(MlmSample, HidesWholeWordsWithinTheNumber) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  MlmVocab vocab{1, 2, 3, 0, std::vector<bool>(500, false)};
  for (size_t id = 300; id < 500; ++id) vocab.continues[id] = true;
  int64_t hidden = 0, as_mask = 0, same = 0, tokens = 0;
  for (uint32_t round = 0; round < 400; ++round) {
    const bool pair = round % 2 == 0;
    std::vector<TokenList> sentences(2 + random() % 4);
    size_t total = 0;
    for (TokenList& sentence : sentences) {
      sentence.resize(1 + random() % 40);
      for (int32_t& token : sentence) token = 4 + static_cast<int32_t>(random() % 496);
      total += sentence.size();
    }
    const int64_t target = 2 + random() % 100;
    NumpyRandom generator(round);
    const MlmSample sample = build_mlm_sample(sentences, target, 0.2, pair, vocab, generator);
    const TokenList original = unmasked(sample);
    const size_t kept = std::min(total, static_cast<size_t>(target));
    ASSERT_LE(original.size(), kept + 3);
    ASSERT_GE(original.size(), kept + 2);
    ASSERT_EQ(sample.types.size(), original.size());
    ASSERT_TRUE(std::is_sorted(sample.types.begin(), sample.types.end()));
    if (!pair) {
      ASSERT_EQ(sample.types.back(), 0);
    }
    ASSERT_EQ(original.front(), 1);
    ASSERT_EQ(original.back(), 2);
    ASSERT_LE(static_cast<double>(sample.masked.size()),
              std::max(1.0, std::nearbyint(0.2 * static_cast<double>(original.size()))));
    std::vector<bool> is_hidden(original.size(), false);
    for (const MaskedPosition& masked : sample.masked) {
      const auto i = static_cast<size_t>(masked.position);
      ASSERT_FALSE(is_hidden[i]);
      ASSERT_NE(masked.label, 1);
      ASSERT_NE(masked.label, 2);
      is_hidden[i] = true;
      as_mask += sample.tokens[i] == 3;
      same += sample.tokens[i] == masked.label;
    }
    hidden += static_cast<int64_t>(sample.masked.size());
    tokens += static_cast<int64_t>(original.size());
    // A piece of a word is hidden exactly when the piece before it is.
    for (size_t i = 2; i < original.size(); ++i) {
      if (original[i] < 300 || original[i - 1] < 4) continue;
      ASSERT_EQ(is_hidden[i], is_hidden[i - 1]);
    }
  }
  EXPECT_NEAR(static_cast<double>(as_mask) / static_cast<double>(hidden), 0.8, 0.08);
  EXPECT_NEAR(static_cast<double>(same) / static_cast<double>(hidden), 0.1, 0.06);
  EXPECT_GT(hidden * 8, tokens);
}

TEST(MlmDataset, PadsAndLabels) {
  std::string text;
  for (int d = 0; d < 12; ++d) {
    for (int s = 0; s < 5; ++s) text += "the gulls count the harbour " + std::to_string(d) + ".\n";
    text += d % 2 == 0 ? "\n" : "  \r\n\n";
  }
  TempFolder folder;
  write_bytes(folder / "text.txt", text);
  const auto tokenizer = load_tokenizer(test_data() / "tokenizers" / "families" / "bert.json");
  DatasetSpec spec;
  spec.kind = DatasetKind::kMlm;
  spec.path = folder / "text.txt";
  spec.sequence_length = 40;
  spec.samples = 50;
  spec.split = "1";
  const DatasetPtr dataset = open_dataset(spec, tokenizer);
  EXPECT_GE(dataset->sample_count(), 50);
  const auto& mlm = dynamic_cast<const MlmDataset&>(*dataset);
  const DatasetPtr again = open_dataset(spec, tokenizer);
  int64_t swapped = 0;
  for (int64_t i = 0; i < dataset->sample_count(); ++i) {
    TokenList ids(40), labels(40), types(40), same(40);
    std::vector<uint8_t> mask(40);
    TokenList order(1, -1);
    dataset->sample(i, {.ids = ids,
                        .labels = labels,
                        .token_types = types,
                        .mask = mask,
                        .sentence_order = order});
    const MlmSample built = mlm.build(i);
    EXPECT_EQ(order[0], built.swapped ? 1 : 0);
    swapped += order[0];
    size_t counted = 0;
    for (size_t t = 0; t < 40; ++t) {
      EXPECT_EQ(mask[t], t < built.tokens.size() ? 1 : 0);
      EXPECT_EQ(ids[t], t < built.tokens.size() ? built.tokens[t] : *tokenizer->id("[PAD]"));
      counted += labels[t] != kNoLabel;
    }
    EXPECT_EQ(counted, built.masked.size());
    EXPECT_GT(counted, 0u);
    EXPECT_EQ(ids[0], *tokenizer->id("[CLS]"));
    again->sample(i, {.ids = same, .labels = labels, .token_types = types, .mask = mask});
    EXPECT_EQ(same, ids);
  }

  EXPECT_GT(swapped, 0);
  EXPECT_LT(swapped, dataset->sample_count());
  EXPECT_TRUE(dataset->fields().sentence_order);
  spec.pairs = false;
  EXPECT_FALSE(open_dataset(spec, tokenizer)->fields().sentence_order);

  // The same documents as JSON lines and as an indexed data set of sentences.
  const SentenceCorpus plain = parse_sentence_text(text, "text", *tokenizer);
  std::string lists, strings;
  for (int d = 0; d < 12; ++d) {
    const std::string sentence = "the gulls count the harbour " + std::to_string(d) + ".";
    lists += "{\"text\": [";
    strings += "{\"text\": \"";
    for (int s = 0; s < 5; ++s) {
      lists += (s > 0 ? ", \"" : "\"") + sentence + "\"";
      strings += sentence + "\\n";
    }
    lists += "]}\n";
    strings += "\"}\n";
  }
  IndexedDatasetWriter writer(folder / "indexed", TokenType::kU16);
  for (int64_t d = 0; d < plain.document_count(); ++d) {
    for (int64_t i = plain.documents[static_cast<size_t>(d)];
         i < plain.documents[static_cast<size_t>(d) + 1]; ++i) {
      TokenList sentence(static_cast<size_t>(plain.sentences->sequence_size(i)));
      plain.sentences->read(i, 0, sentence);
      writer.add_sequence(std::span<const int32_t>(sentence));
    }
    writer.end_document();
  }
  writer.finish();
  const SentenceCorpus from_lists = parse_sentence_json_lines(lists, "lists", *tokenizer);
  const SentenceCorpus from_strings = parse_sentence_json_lines(strings, "strings", *tokenizer);
  const SentenceCorpus indexed = open_sentence_corpus(folder / "indexed", nullptr);
  for (const SentenceCorpus* other : {&from_lists, &from_strings, &indexed}) {
    EXPECT_EQ(other->documents, plain.documents);
    EXPECT_EQ(tokens_of(*other->sentences), tokens_of(*plain.sentences));
  }
}

TEST(MlmDataset, RefusesWhatCannotBe) {
  const auto bert = load_tokenizer(test_data() / "tokenizers" / "families" / "bert.json");
  const auto open = [&](std::string_view text, const MlmOptions& options) {
    SentenceCorpus corpus = parse_sentence_text(text, "text", *bert);
    const int64_t documents = corpus.document_count();
    return MlmDataset(std::move(corpus), {0, documents}, mlm_vocab(*bert), options, "mlm");
  };
  expect_error(Code::kInvalidArgument, {"none of its 2 documents"},
               [&] { open("the gulls\n\nthe harbour\n", {.sequence_length = 16}); });
  EXPECT_EQ(
      open("the gulls\n\nthe harbour\n", {.sequence_length = 16, .pairs = false}).sample_count(),
      2);
  expect_error(Code::kInvalidArgument, {"sequence length is 4"},
               [&] { open("a\nb\n", {.sequence_length = 4}); });
  expect_error(Code::kInvalidArgument, {"masking probability"},
               [&] { open("a\nb\n", {.sequence_length = 9, .mask_probability = 0}); });
  expect_error(Code::kInvalidArgument, {"short samples"},
               [&] { open("a\nb\n", {.sequence_length = 9, .short_probability = -1}); });
  expect_error(Code::kInvalidArgument, {"[CLS]"}, [] { mlm_vocab(*make_byte_tokenizer()); });
  expect_error(Code::kInvalidArgument, {"holds no text"},
               [&] { parse_sentence_text("\n \n", "empty", *bert); });
  expect_error(Code::kCorrupt, {"l:2", "number"},
               [&] { parse_sentence_json_lines("{\"text\": []}\n{\"text\": 4}\n", "l", *bert); });
  expect_error(Code::kCorrupt, {"l:1", "text"},
               [&] { parse_sentence_json_lines("{\"body\": \"x\"}", "l", *bert); });
  const std::vector<TokenList> foreign = {{5, 6}, {20}};
  NumpyRandom random(1);
  expect_error(Code::kInvalidArgument, {"token 20"},
               [&] { build_mlm_sample(foreign, 10, 0.15, true, golden_vocab(), random); });
}

}  // namespace
}  // namespace ds
