#include "data/dataset_spec.h"

#include <array>

#include "base/error.h"
#include "base/log.h"
#include "data/blend_dataset.h"
#include "data/corpus.h"
#include "data/gpt_dataset.h"
#include "data/mlm_dataset.h"

namespace ds {
namespace {

constexpr std::array kKinds = {DatasetKind::kGpt, DatasetKind::kBlend, DatasetKind::kPacked,
                               DatasetKind::kMlm};

template <class... Parts>
[[noreturn]] void refuse(const char* field, const Parts&... parts) {
  fail(Code::kConfig, "data set specification: /", field, " ", parts...);
}

void check_common(const DatasetSpec& spec) {
  if (spec.sequence_length < 1 || spec.sequence_length >= INT32_MAX) {
    refuse("sequence_length", "is ", spec.sequence_length, "; it must be at least 1");
  }
  if (spec.samples.value_or(1) < 1) refuse("samples", "is ", *spec.samples, "; ask for at least 1");
  if (spec.kind != DatasetKind::kBlend) {
    if (spec.path.empty()) refuse("path", "is missing");
    if (!spec.members.empty()) refuse("members", "belong to a blend");
    if (!spec.weights.empty()) refuse("weights", "belong to a blend");
  }
  try {
    static_cast<void>(split_boundaries(spec.split, 0));
  } catch (const Error& error) {
    refuse("split", "cannot be used: ", error.message());
  }
}

[[noreturn]] void refuse_empty_part(const DatasetSpec& spec, int64_t count, const char* units) {
  refuse("split", "\"", printable(spec.split), "\" leaves no data for the ", split_name(spec.part),
         " part of the ", count, " ", units, " of ", printable(spec.path.string(), 300));
}

// What samples of running tokens say of documents and of padding.
GptSampleOptions gpt_samples(const DatasetSpec& spec, const TokenizerPtr& tokenizer) {
  GptSampleOptions out;
  out.end_id = spec.eod_id;
  if (!out.end_id && tokenizer) out.end_id = tokenizer->eos_id();
  out.mask_end_loss = spec.eod_mask_loss;
  out.part_documents = spec.part_documents;
  out.pad_id = spec.pad_id.value_or(out.end_id.value_or(0));
  if ((spec.eod_mask_loss || spec.part_documents) && !out.end_id) {
    refuse("eod_id",
           "is missing, and the tokenizer has no end-of-text token: what ends a document?");
  }
  return out;
}

DatasetPtr open_gpt(const DatasetSpec& spec, const TokenizerPtr& tokenizer) {
  GptIndexOptions options;
  options.sequence_length = spec.sequence_length;
  options.seed = spec.seed;
  options.samples = spec.samples;
  options.keep_partial = spec.keep_partial && spec.part == Split::kValid;
  const TokenSourcePtr source = open_token_source(spec.path, tokenizer, spec.sequence_length);
  auto dataset = make_gpt_dataset(source, spec.split, spec.part, options, spec.split_rounding,
                                  gpt_samples(spec, tokenizer));
  if (!dataset) refuse_empty_part(spec, source->sequence_count(), "sequences");
  return dataset;
}

DatasetPtr open_packed(const DatasetSpec& spec, const TokenizerPtr& tokenizer) {
  const std::string name = printable(spec.path.string(), 300);
  auto corpus = std::make_shared<const FinetuneCorpus>(
      load_finetune_corpus(spec.path, tokenizer, spec.finetune));
  DS_CHECK(corpus->example_count() > 0, Code::kInvalidArgument, name,
           " holds no example to learn from");
  const SequenceRange range =
      split_range(spec.split, spec.part, corpus->example_count(), spec.split_rounding);
  if (range.size() == 0) refuse_empty_part(spec, corpus->example_count(), "examples");
  PackingOptions options;
  options.sequence_length = spec.sequence_length;
  options.too_long = spec.too_long;
  options.pack = spec.pack;
  options.seed = spec.seed;
  options.samples = spec.samples;
  const std::optional<int32_t> end = tokenizer ? tokenizer->eos_id() : std::nullopt;
  options.pad_id = spec.pad_id.value_or(end.value_or(0));
  const int32_t vocab = tokenizer ? tokenizer->vocab_size() : 256;
  if (options.pad_id < 0 || options.pad_id >= vocab) {
    refuse("pad_id", "is ", options.pad_id, ", but the tokenizer has ", vocab, " tokens");
  }
  const FinetuneStats& read = corpus->stats;
  auto dataset = std::make_shared<const PackedDataset>(
      corpus, range, options, str_cat(name, ", ", split_name(spec.part), " part"));
  const PackingStats& packed = dataset->stats();
  log_info("data", name, ": ", read.lines, " lines, ", read.without_labels,
           " without anything to learn; ", split_name(spec.part), " part: ", packed.examples,
           " examples (", packed.cut, " cut) in ", packed.sequences, " sequences, ", packed.skipped,
           " skipped as too long, ", packed.without_labels, " without labels after the cut");
  return dataset;
}

DatasetPtr open_mlm(const DatasetSpec& spec, const TokenizerPtr& tokenizer) {
  DS_CHECK(tokenizer != nullptr, Code::kInvalidArgument, "masked samples need a tokenizer");
  MlmVocab vocab = mlm_vocab(*tokenizer);
  SentenceCorpus corpus = open_sentence_corpus(spec.path, tokenizer);
  const int64_t documents = corpus.document_count();
  const SequenceRange range = split_range(spec.split, spec.part, documents, spec.split_rounding);
  if (range.size() == 0) refuse_empty_part(spec, documents, "documents");
  if (spec.sequence_length < 5) refuse("sequence_length", "must be at least 5 for masked samples");
  if (!(spec.mask_probability > 0 && spec.mask_probability <= 1)) {
    refuse("mask_probability", "is ", spec.mask_probability, "; it must be above 0 and at most 1");
  }
  if (!(spec.short_probability >= 0 && spec.short_probability <= 1)) {
    refuse("short_probability", "is ", spec.short_probability, "; it must be from 0 to 1");
  }
  MlmOptions options;
  options.sequence_length = spec.sequence_length;
  options.mask_probability = spec.mask_probability;
  options.short_probability = spec.short_probability;
  options.pairs = spec.pairs;
  options.seed = spec.seed;
  options.samples = spec.samples;
  return std::make_shared<const MlmDataset>(
      std::move(corpus), range, std::move(vocab), options,
      str_cat(printable(spec.path.string(), 300), ", ", split_name(spec.part), " part"));
}

DatasetPtr open_blend(const DatasetSpec& spec, const TokenizerPtr& tokenizer) {
  if (spec.members.empty()) refuse("members", "of a blend are missing");
  if (!spec.path.empty()) refuse("path", "belongs to the members of a blend");
  const bool weighted = !spec.weights.empty();
  if (weighted && spec.weights.size() != spec.members.size()) {
    refuse("weights", "has ", spec.weights.size(), " numbers for ", spec.members.size(),
           " members");
  }
  if (weighted && !spec.samples) {
    refuse("samples", "is missing: a blend by weights has no end of its own");
  }
  const auto open_member = [&](size_t d, std::optional<int64_t> samples) {
    DatasetSpec member = spec.members[d];
    if (member.kind == DatasetKind::kBlend) refuse("members", "of a blend cannot be blends");
    member.sequence_length = spec.sequence_length;
    member.split = spec.split;
    member.part = spec.part;
    member.split_rounding = spec.split_rounding;
    member.seed = spec.seed;
    member.samples = samples;
    return open_dataset(member, tokenizer);
  };
  std::vector<DatasetPtr> members(spec.members.size());
  if (!weighted) {
    std::vector<double> weights;
    std::vector<int64_t> quotas;
    int64_t size = 0;
    for (size_t d = 0; d < members.size(); ++d) {
      members[d] = open_member(d, std::nullopt);
      quotas.push_back(members[d]->sample_count());
      weights.push_back(static_cast<double>(quotas.back()));
      size += quotas.back();
    }
    size = std::min(size, spec.samples.value_or(size));
    return std::make_shared<BlendDataset>(std::move(members),
                                          build_blend_index(weights, size, quotas));
  }
  const std::vector<int64_t> counts = blend_counts(spec.weights, *spec.samples);
  int64_t size = 0;
  for (const int64_t count : counts) size += count;
  BlendIndex index = build_blend_index(spec.weights, size);
  for (size_t d = 0; d < members.size(); ++d) {
    if (counts[d] == 0) {
      members[d] = open_member(d, 1);
      continue;
    }
    members[d] = open_member(d, counts[d]);
    // Rounding up every count can ask one member for a sample more than its own count.
    if (members[d]->sample_count() < index.taken[d]) members[d] = open_member(d, index.taken[d]);
  }
  return std::make_shared<BlendDataset>(std::move(members), std::move(index));
}

}  // namespace

const char* dataset_kind_name(DatasetKind kind) {
  switch (kind) {
    case DatasetKind::kGpt:
      return "gpt";
    case DatasetKind::kBlend:
      return "blend";
    case DatasetKind::kPacked:
      return "packed";
    case DatasetKind::kMlm:
      return "mlm";
  }
  return "unknown";
}

std::optional<DatasetKind> dataset_kind(std::string_view name) {
  for (const DatasetKind kind : kKinds) {
    if (name == dataset_kind_name(kind)) return kind;
  }
  return std::nullopt;
}

DatasetPtr open_dataset(const DatasetSpec& spec, const TokenizerPtr& tokenizer) {
  check_common(spec);
  switch (spec.kind) {
    case DatasetKind::kGpt:
      return open_gpt(spec, tokenizer);
    case DatasetKind::kBlend:
      return open_blend(spec, tokenizer);
    case DatasetKind::kPacked:
      return open_packed(spec, tokenizer);
    case DatasetKind::kMlm:
      return open_mlm(spec, tokenizer);
  }
  fail(Code::kInternal, "a data set of an unknown kind");
}

}  // namespace ds
