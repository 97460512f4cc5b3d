// Fuzzes data for masked language models. An input is a byte of flags, a byte for the sequence
// length, and text. Flags: 1 JSON lines instead of plain text, 2 one text per sample instead of
// pairs, 4 the text is a vocab.txt of which the first half is used as text, too.
#include <optional>
#include <vector>

#include "data/mlm_dataset.h"
#include "data/sentence_corpus.h"
#include "fuzz/fuzz_support.h"

namespace {

using ds::fuzz::accepts;
using ds::fuzz::claim;

constexpr std::string_view kVocab =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n##a\n##b\n##c\nthe\n.\n,\ntext\n##s\n0\n1\n";

void check_samples(const ds::MlmDataset& samples, const ds::MlmVocab& vocab) {
  const auto length = static_cast<size_t>(samples.sequence_length());
  std::vector<int32_t> ids(length), labels(length), types(length);
  std::vector<uint8_t> mask(length);
  for (int64_t i = 0; i < std::min<int64_t>(samples.sample_count(), 100); ++i) {
    samples.sample(i, {.ids = ids, .labels = labels, .token_types = types, .mask = mask});
    claim(ids[0] == vocab.cls && mask[0] == 1, "samples begin with [CLS]");
    size_t used = 0;
    for (size_t t = 0; t < length; ++t) {
      claim(ids[t] >= 0 && ids[t] < vocab.size(), "ids are in the vocabulary");
      claim(labels[t] == ds::kNoLabel || (labels[t] >= 0 && labels[t] < vocab.size()),
            "labels are in the vocabulary");
      claim(types[t] == 0 || types[t] == 1, "there are two types of tokens");
      claim(mask[t] <= 1 && (t == 0 || mask[t] <= mask[t - 1]), "padding comes last");
      claim(mask[t] != 0 || (labels[t] == ds::kNoLabel && ids[t] == vocab.pad),
            "padding is not learned");
      used += mask[t];
    }
    claim(used >= 2 && ids[used - 1] == vocab.sep, "samples end with [SEP]");
  }
}

std::vector<int32_t> sizes_of(const ds::TokenSource& source) {
  std::vector<int32_t> sizes;
  for (int64_t i = 0; i < source.sequence_count(); ++i) sizes.push_back(source.sequence_size(i));
  return sizes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ds::fuzz::be_quiet();
  ds::fuzz::Input input(data, size);
  const int flags = input.take<uint8_t>();
  const int64_t length = input.take<uint8_t>();
  std::string_view text = input.rest();

  ds::TokenizerPtr tokenizer;
  const std::string_view words = (flags & 4) != 0 ? text : kVocab;
  if (!accepts([&] { tokenizer = ds::parse_bert_vocab(words, "vocab.txt"); })) return 0;
  ds::MlmVocab vocab;
  if (!accepts([&] { vocab = ds::mlm_vocab(*tokenizer); })) return 0;
  if ((flags & 4) != 0) text = text.substr(0, text.size() / 2);

  std::optional<ds::SentenceCorpus> corpus;
  const bool json = (flags & 1) != 0;
  const bool parsed = accepts([&] {
    corpus = json ? ds::parse_sentence_json_lines(text, "input", *tokenizer)
                  : ds::parse_sentence_text(text, "input", *tokenizer);
  });
  const auto path = ds::fuzz::folder().put(json ? "lines.jsonl" : "lines.txt", text);
  std::optional<ds::SentenceCorpus> from_file;
  const bool loaded = accepts([&] { from_file = ds::open_sentence_corpus(path, tokenizer); });
  claim(parsed == loaded, "text in memory and in a file is accepted alike");
  if (!parsed) return 0;
  claim(from_file->documents == corpus->documents &&
            sizes_of(*from_file->sentences) == sizes_of(*corpus->sentences),
        "text in memory and in a file is read alike");
  claim(corpus->documents.back() == corpus->sentences->sequence_count(),
        "documents hold every sentence");
  for (int64_t i = 0; i < corpus->sentences->sequence_count(); ++i) {
    claim(corpus->sentences->sequence_size(i) > 0, "sentences have tokens");
  }

  ds::MlmOptions options;
  options.sequence_length = length;
  options.pairs = (flags & 2) == 0;
  options.samples = 1 + (flags >> 3);
  const ds::SequenceRange all{0, corpus->document_count()};
  std::optional<ds::MlmDataset> samples;
  if (!accepts([&] { samples.emplace(*corpus, all, vocab, options, "all"); })) return 0;
  check_samples(*samples, vocab);
  return 0;
}
