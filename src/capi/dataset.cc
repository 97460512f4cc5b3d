// Data sets of ds.h.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "capi/args.h"
#include "capi/dataset_json.h"
#include "capi/dataset_object.h"
#include "capi/fence.h"
#include "capi/tensor_object.h"
#include "capi/token_args.h"
#include "capi/tokenizer_object.h"
#include "data/corpus.h"
#include "data/indexed_dataset.h"

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_dataset_open(const char* spec_json, const ds_tokenizer* tokenizer,
                          ds_dataset** out_dataset) {
  return guard(__func__, [&] {
    ds_dataset*& out = out_param(out_dataset, "out_dataset");
    TokenizerPtr encoder;
    if (tokenizer != nullptr) encoder = look_up(tokenizer, "tokenizer")->tokenizer;
    static_cast<void>(text_param(spec_json, "spec_json"));
    out = publish<ds_dataset>(
        std::make_shared<DatasetObject>(open_dataset(parse_dataset_spec(spec_json), encoder)));
  });
}

ds_status ds_dataset_build(const char* input, const ds_tokenizer* tokenizer, ds_bool append_end,
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

ds_status ds_dataset_merge(const char* inputs_json, const char* output_prefix) {
  return guard(__func__, [&] {
    constexpr const char* kWhat = "inputs_json";
    const Json list = parse_json(text_param(inputs_json, kWhat), kWhat, Code::kInvalidArgument);
    DS_CHECK(list.is_array() && !list.empty(), Code::kInvalidArgument, kWhat,
             " must be a list of prefixes, not ", printable(dump_json(list)));
    std::vector<std::filesystem::path> inputs;
    for (const Json& item : list) {
      DS_CHECK(item.is_string() && !item.get_ref<const std::string&>().empty(),
               Code::kInvalidArgument, kWhat, "[", inputs.size(), "] must be a prefix, not ",
               printable(dump_json(item)));
      inputs.emplace_back(item.get<std::string>());
    }
    IndexedDatasetWriter::merge(inputs, path_param(output_prefix, "output_prefix"));
  });
}

ds_status ds_dataset_describe(const ds_dataset* dataset, ds_dataset_info* out_info) {
  return guard(__func__, [&] {
    const auto object = look_up(dataset, "dataset");
    ds_dataset_info info{};
    info.samples = object->dataset->sample_count();
    info.sequence_length = object->dataset->sequence_length();
    give_struct(info, out_info, "out_info");
  });
}

ds_status ds_dataset_sample(const ds_dataset* dataset, int64_t index, ds_tensor** out_tokens) {
  return guard(__func__, [&] {
    const auto object = look_up(dataset, "dataset");
    ds_tensor*& out = out_param(out_tokens, "out_tokens");
    const Dataset& data = *object->dataset;
    const DatasetFields fields = data.fields();
    DS_CHECK(!fields.mask && !fields.segments && !fields.token_types, Code::kUnsupported,
             "samples of this data set are not running tokens; ds_dataset_field gives their parts");
    // The labels are the ids, one further: the last one completes the sample.
    const auto length = static_cast<size_t>(data.sequence_length());
    std::vector<int32_t> tokens(length + 1), labels(length);
    SampleView view;
    view.ids = std::span(tokens).first(length);
    view.labels = labels;
    data.sample(index, view);
    tokens.back() = labels.back();
    out = publish_tensor(id_tensor(tokens));
  });
}

ds_status ds_dataset_field(const ds_dataset* dataset, int64_t index, const char* field,
                           ds_tensor** out_values) {
  return guard(__func__, [&] {
    const auto object = look_up(dataset, "dataset");
    const std::string name(utf8_param(field, "field"));
    ds_tensor*& out = out_param(out_values, "out_values");
    const Dataset& data = *object->dataset;
    const DatasetFields has = data.fields();
    const auto length = static_cast<size_t>(data.sequence_length());
    const auto numbers = [length](bool there) { return std::vector<int32_t>(there ? length : 0); };
    std::vector<int32_t> ids = numbers(true), labels = numbers(true);
    std::vector<int32_t> segments = numbers(has.segments), types = numbers(has.token_types);
    std::vector<uint8_t> mask(has.mask ? length : 0);
    std::vector<int32_t> order(has.sentence_order ? 1 : 0);
    data.sample(index, {ids, labels, segments, types, mask, order});
    const std::pair<const char*, std::vector<int32_t>*> fields[] = {{"ids", &ids},
                                                                    {"labels", &labels},
                                                                    {"segments", &segments},
                                                                    {"token_types", &types},
                                                                    {"sentence_order", &order}};
    for (const auto& [known, values] : fields) {
      if (name == known && !values->empty()) {
        out = publish_tensor(id_tensor(*values));
        return;
      }
    }
    DS_CHECK(name == "mask" && has.mask, Code::kNotFound, "the data set has no field \"",
             printable(name), "\"");
    Tensor tensor = Tensor::empty(make_cpu_device({.cache = false}), DType::kUInt8,
                                  {static_cast<int64_t>(length)}, MemoryTag::kOther);
    std::copy(mask.begin(), mask.end(), tensor.data<uint8_t>());
    out = publish_tensor(std::move(tensor));
  });
}

void ds_dataset_destroy(ds_dataset* dataset) { end_handle(dataset); }
