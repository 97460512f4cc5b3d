// Data sets of ds.h.
#include <array>
#include <vector>

#include "base/text.h"
#include "capi/args.h"
#include "capi/dataset_object.h"
#include "capi/fence.h"
#include "capi/json_args.h"
#include "capi/tensor_object.h"
#include "capi/token_args.h"
#include "capi/tokenizer_object.h"
#include "data/corpus.h"

namespace ds::capi {
namespace {

constexpr const char* kDefaultSplit = "969,30,1";

Split part_of(const JsonArguments& spec) {
  const std::string name = spec.text("part", "train");
  for (const Split part : {Split::kTrain, Split::kValid, Split::kTest}) {
    if (name == split_name(part)) return part;
  }
  spec.refuse("part",
              str_cat("must be \"train\", \"valid\" or \"test\", not \"", printable(name), "\""));
}

std::shared_ptr<const GptDataset> open_dataset(const JsonArguments& spec, TokenizerPtr tokenizer) {
  const std::string path = spec.required_text("path");
  GptIndexOptions options;
  options.sequence_length = spec.required_integer("sequence_length", 1, INT32_MAX - 1);
  options.seed = static_cast<uint32_t>(spec.integer("seed", 1234, 0, UINT32_MAX));
  if (const int64_t samples = spec.integer("samples", 0, 0, INT64_MAX); samples > 0) {
    options.samples = samples;
  }
  const std::string split = spec.text("split", kDefaultSplit);
  const Split part = part_of(spec);
  try {
    static_cast<void>(split_boundaries(split, 0));
  } catch (const Error& error) {
    spec.refuse("split", str_cat("cannot be used: ", error.message()));
  }
  const TokenSourcePtr source =
      open_token_source(path, std::move(tokenizer), options.sequence_length);
  auto dataset = make_gpt_dataset(source, split, part, options);
  if (!dataset) {
    spec.refuse("split", str_cat("\"", printable(split), "\" leaves no data for the ",
                                 split_name(part), " part of the ", source->sequence_count(),
                                 " sequences of ", printable(path, 300)));
  }
  return dataset;
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_dataset_open(const char* spec_json, const ds_tokenizer* tokenizer,
                          ds_dataset** out_dataset) {
  return guard(__func__, [&] {
    ds_dataset*& out = out_param(out_dataset, "out_dataset");
    TokenizerPtr encoder;
    if (tokenizer != nullptr) encoder = look_up(tokenizer, "tokenizer")->tokenizer;
    static_cast<void>(text_param(spec_json, "spec_json"));
    const JsonArguments spec(spec_json, "data set specification",
                             {"path", "sequence_length", "samples", "split", "part", "seed"});
    out = publish<ds_dataset>(
        std::make_shared<DatasetObject>(open_dataset(spec, std::move(encoder))));
  });
}

ds_status ds_dataset_build(const char* input, const ds_tokenizer* tokenizer, int32_t append_end,
                           const char* output_prefix) {
  return guard(__func__, [&] {
    const auto object = look_up(tokenizer, "tokenizer");
    const std::string from = path_param(input, "input");
    const std::string to = path_param(output_prefix, "output_prefix");
    CorpusOptions options;
    options.append_eod = append_end != 0;
    ThreadPool pool;
    options.pool = &pool;
    build_indexed_dataset(from, *object->tokenizer, to, options);
  });
}

ds_status ds_dataset_size(const ds_dataset* dataset, int64_t* out_samples) {
  return guard(__func__, [&] {
    const auto object = look_up(dataset, "dataset");
    out_param(out_samples, "out_samples") = object->dataset->sample_count();
  });
}

ds_status ds_dataset_sequence_length(const ds_dataset* dataset, int64_t* out_length) {
  return guard(__func__, [&] {
    const auto object = look_up(dataset, "dataset");
    out_param(out_length, "out_length") = object->dataset->sequence_length();
  });
}

ds_status ds_dataset_sample(const ds_dataset* dataset, int64_t index, ds_tensor** out_tokens) {
  return guard(__func__, [&] {
    const auto object = look_up(dataset, "dataset");
    ds_tensor*& out = out_param(out_tokens, "out_tokens");
    std::vector<int32_t> tokens(static_cast<size_t>(object->dataset->sequence_length()) + 1);
    object->dataset->sample(index, tokens);
    out = publish_tensor(id_tensor(tokens));
  });
}

void ds_dataset_destroy(ds_dataset* dataset) { end_handle(dataset); }
