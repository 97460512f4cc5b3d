// ds/dataset.hpp - Samples of token files. Part of ds.hpp.
#ifndef DS_DATASET_HPP
#define DS_DATASET_HPP

#include <cstdint>
#include <string>
#include <vector>

#include "base.hpp"
#include "dataset.h"
#include "tensor.hpp"
#include "tokenizer.hpp"

namespace libds {

// What ds_dataset_open takes as JSON.
struct DatasetSpec {
  std::string path;
  int64_t sequence_length = 0;
  int64_t samples = 0;  // 0 = one epoch
  std::string split = "969,30,1";
  std::string part = "train";
  int64_t seed = 1234;

  std::string to_json() const {
    return "{\"path\": " + detail::quote(path) +
           ", \"sequence_length\": " + std::to_string(sequence_length) +
           ", \"samples\": " + std::to_string(samples) + ", \"split\": " + detail::quote(split) +
           ", \"part\": " + detail::quote(part) + ", \"seed\": " + std::to_string(seed) + "}";
  }
};

class Dataset : public detail::Handle<ds_dataset, ds_dataset_destroy> {
 public:
  using Handle::Handle;

  static Dataset open(const std::string& spec_json, const Tokenizer* tokenizer = nullptr) {
    ds_dataset* out = nullptr;
    check(ds_dataset_open(spec_json.c_str(), tokenizer ? tokenizer->get() : nullptr, &out));
    return Dataset(out);
  }
  static Dataset open(const DatasetSpec& spec, const Tokenizer* tokenizer = nullptr) {
    return open(spec.to_json(), tokenizer);
  }
  // Tokenises a file into PREFIX.bin and PREFIX.idx.
  static void build(const std::string& input, const Tokenizer& tokenizer, bool append_end,
                    const std::string& output_prefix) {
    check(ds_dataset_build(input.c_str(), tokenizer.get(), append_end, output_prefix.c_str()));
  }

  // Writes the documents of several prefixes one after another into PREFIX.bin and PREFIX.idx.
  static void merge(const std::vector<std::string>& inputs, const std::string& output_prefix) {
    std::string list;
    for (const std::string& input : inputs)
      list += (list.empty() ? "" : ", ") + detail::quote(input);
    check(ds_dataset_merge(("[" + list + "]").c_str(), output_prefix.c_str()));
  }

  ds_dataset_info info() const {
    ds_dataset_info out = DS_DATASET_INFO_INIT;
    check(ds_dataset_describe(get(), &out));
    return out;
  }
  int64_t size() const { return info().samples; }
  int64_t sequence_length() const { return info().sequence_length; }
  Tensor sample(int64_t index) const {
    ds_tensor* out = nullptr;
    check(ds_dataset_sample(get(), index, &out));
    return Tensor(out);
  }
  // "ids", "labels", "segments", "token_types", "sentence_order" or "mask" of one sample.
  Tensor field(int64_t index, const std::string& name) const {
    ds_tensor* out = nullptr;
    check(ds_dataset_field(get(), index, name.c_str(), &out));
    return Tensor(out);
  }
};

}  // namespace libds

#endif  // DS_DATASET_HPP
