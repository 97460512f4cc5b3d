// Fuzzes fine-tuning data. An input is a byte of flags, a byte for the sequence length, and JSON
// lines. Flags: 1 a chat vocabulary instead of bytes, 2 ChatML or 4 Llama-3 turns, 8 learn prompts,
// 16 no end, 32 no begin, 64 skip long examples, 128 a sequence per example.
#include <memory>
#include <optional>
#include <vector>

#include "base/json.h"
#include "data/finetune_corpus.h"
#include "data/packed_dataset.h"
#include "fuzz/fuzz_support.h"

namespace {

using ds::fuzz::accepts;
using ds::fuzz::claim;

// A few letters and the special tokens of both templates.
ds::TokenizerPtr chat_tokenizer() {
  ds::Json vocab = ds::Json::object();
  for (int i = 0; i < 94; ++i) vocab[std::string(1, static_cast<char>(33 + i))] = i;
  ds::Json added = ds::Json::array();
  int32_t id = 94;
  for (const char* name : {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>",
                           "<|start_header_id|>", "<|end_header_id|>"}) {
    added.push_back({{"id", id++}, {"content", name}, {"special", true}});
  }
  const ds::Json document = {
      {"version", "1.0"},
      {"added_tokens", added},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", ds::Json::array()}}}};
  return ds::parse_tokenizer_json(ds::dump_json(document), "chat");
}

void check_corpus(const ds::FinetuneCorpus& corpus, int32_t vocab) {
  claim(corpus.stats.examples == corpus.example_count(), "examples are counted");
  claim(corpus.stats.lines == corpus.stats.examples + corpus.stats.without_labels,
        "lines are examples or left out");
  int64_t total = 0;
  for (int64_t i = 0; i < corpus.example_count(); ++i) {
    const auto tokens = corpus.example(i);
    total += static_cast<int64_t>(tokens.size());
    claim(tokens.size() >= 2, "an example predicts at least one token");
    claim(ds::is_learned(tokens.back()), "an example ends with a learned token");
    for (const int32_t masked : tokens) {
      const int32_t token = ds::token_of(masked);
      claim(token >= 0 && token < vocab, "tokens are in the vocabulary");
    }
  }
  claim(total == static_cast<int64_t>(corpus.tokens.size()), "examples fill the corpus");
}

void check_packing(const std::shared_ptr<const ds::FinetuneCorpus>& corpus,
                   const ds::PackingOptions& options) {
  std::optional<ds::PackedDataset> packed;
  const ds::SequenceRange all{0, corpus->example_count()};
  if (!accepts([&] { packed.emplace(corpus, all, options, "all"); })) return;
  const auto length = static_cast<size_t>(options.sequence_length);
  std::vector<int32_t> ids(length), labels(length), segments(length);
  std::vector<uint8_t> mask(length);
  const ds::SampleView view{.ids = ids, .labels = labels, .segments = segments, .mask = mask};
  int64_t positions = 0, pieces = 0;
  for (int64_t i = 0; i < packed->sample_count(); ++i) {
    packed->sample(i, view);
    bool learned = false;
    for (size_t t = 0; t < length; ++t) {
      claim(mask[t] <= 1 && (t == 0 || mask[t] <= mask[t - 1]), "padding comes last");
      claim(segments[t] == (t == 0 ? 0 : segments[t - 1]) ||
                (t > 0 && segments[t] == segments[t - 1] + 1),
            "segments are numbered in order");
      claim(labels[t] == ds::kNoLabel || labels[t] >= 0, "labels are tokens or none");
      claim(mask[t] != 0 || (labels[t] == ds::kNoLabel && ids[t] == options.pad_id),
            "padding is not learned");
      positions += mask[t];
      learned = learned || labels[t] != ds::kNoLabel;
      // Inside of a segment a label is the id that follows.
      if (t > 0 && mask[t] != 0 && segments[t] == segments[t - 1] &&
          labels[t - 1] != ds::kNoLabel) {
        claim(labels[t - 1] == ids[t], "labels are the ids one later");
      }
    }
    claim(learned, "every sequence has something to learn");
    pieces += segments.back() + (mask.back() != 0 ? 1 : 0);
  }
  claim(positions == packed->stats().positions && pieces == packed->stats().examples,
        "every example is in one sequence");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ds::fuzz::be_quiet();
  static const ds::TokenizerPtr bytes = ds::make_byte_tokenizer();
  static const ds::TokenizerPtr chat = chat_tokenizer();
  ds::fuzz::Input input(data, size);
  const int flags = input.take<uint8_t>();
  const int64_t length = input.take<uint8_t>();
  const ds::TokenizerPtr& tokenizer = (flags & 1) != 0 ? chat : bytes;
  ds::FinetuneOptions options;
  options.chat = (flags & 2) != 0   ? ds::ChatTemplate::kChatml
                 : (flags & 4) != 0 ? ds::ChatTemplate::kLlama3
                                    : ds::ChatTemplate::kPlain;
  options.learn_prompts = (flags & 8) != 0;
  options.append_end = (flags & 16) == 0;
  options.add_begin = (flags & 32) == 0;

  auto corpus = std::make_shared<ds::FinetuneCorpus>();
  const bool parsed = accepts(
      [&] { *corpus = ds::parse_finetune_corpus(input.rest(), "input", tokenizer, options); });
  const auto path = ds::fuzz::folder().put("lines.jsonl", input.rest());
  ds::FinetuneCorpus from_file;
  const bool loaded =
      accepts([&] { from_file = ds::load_finetune_corpus(path, tokenizer, options); });
  claim(parsed == loaded, "text in memory and in a file is accepted alike");
  if (!parsed) return 0;
  claim(from_file.tokens == corpus->tokens && from_file.ends == corpus->ends,
        "text in memory and in a file is read alike");
  check_corpus(*corpus, tokenizer->vocab_size());
  ds::PackingOptions packing;
  packing.sequence_length = length;
  packing.too_long = (flags & 64) != 0 ? ds::TooLong::kSkip : ds::TooLong::kCut;
  packing.pack = (flags & 128) == 0;
  check_packing(corpus, packing);
  return 0;
}
