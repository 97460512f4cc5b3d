// A description of training data and the data set that it opens: what the "data" of a run says,
// without its syntax.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/finetune_corpus.h"
#include "data/packed_dataset.h"
#include "data/splits.h"
#include "tokenizer/tokenizer.h"

namespace ds {

enum class DatasetKind {
  kGpt,     // running tokens: PREFIX.bin and .idx, a text file, or .jsonl with "text"
  kBlend,   // members, drawn from by weight
  kPacked,  // fine-tuning examples of a .jsonl file, packed
  kMlm,     // documents of sentences, with hidden tokens to find (BERT)
};
const char* dataset_kind_name(DatasetKind kind);
std::optional<DatasetKind> dataset_kind(std::string_view name);

struct DatasetSpec {
  DatasetKind kind = DatasetKind::kGpt;
  std::filesystem::path path = {};  // not for a blend
  int64_t sequence_length = 0;
  // Samples that must be there at least; nullopt: each datum once.
  std::optional<int64_t> samples = std::nullopt;
  std::string split = "969,30,1";
  Split part = Split::kTrain;
  SplitRounding split_rounding = SplitRounding::kMegatron;
  uint32_t seed = 1234;

  // kBlend. The members take sequence_length, split, its rounding, part and seed from the blend;
  // their samples follow from the weights. Without weights every sample of every member is there
  // once, or the first `samples` of them.
  std::vector<DatasetSpec> members = {};
  std::vector<double> weights = {};

  // kGpt.
  bool eod_mask_loss = false;   // what follows a document's end is no label
  bool part_documents = false;  // tokens see their own document, whose positions begin at 0
  bool keep_partial = false;    // the last tokens of validation data are a sample too, and padded
  std::optional<int32_t> eod_id = std::nullopt;  // nullopt: the tokenizer's end-of-text token

  // kPacked.
  FinetuneOptions finetune = {};
  TooLong too_long = TooLong::kCut;
  bool pack = true;
  std::optional<int32_t> pad_id = std::nullopt;  // kGpt too; nullopt: the end-of-text token, or 0

  // kMlm; the tokenizer must be one of BERT.
  double mask_probability = 0.15;
  double short_probability = 0.1;
  bool pairs = true;
};

// `tokenizer` reads text; null means bytes. What the specification itself gets wrong is
// Error(kConfig) naming the field.
DatasetPtr open_dataset(const DatasetSpec& spec, const TokenizerPtr& tokenizer);

}  // namespace ds
