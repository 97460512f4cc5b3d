#include "engine/dataset_batches.h"

#include <algorithm>

#include "data/token_source.h"

namespace ds {
namespace {

// `vocab`: ids must be below it. Labels are, too, unless they are classes.
void check_sample(const Dataset& dataset, int64_t index, const SampleView& sample, int64_t vocab,
                  bool labels_are_tokens) {
  const auto bad = [&](int32_t id) { return id < 0 || id >= vocab; };
  const auto id = std::find_if(sample.ids.begin(), sample.ids.end(), bad);
  if (id != sample.ids.end()) {
    fail_token(dataset.place(index, id - sample.ids.begin()), *id, vocab);
  }
  if (!labels_are_tokens) return;
  const auto label = std::find_if(sample.labels.begin(), sample.labels.end(),
                                  [&](int32_t x) { return x != kNoLabel && bad(x); });
  if (label != sample.labels.end()) {  // of running text only the last is no id before
    fail_token(dataset.place(index, label - sample.labels.begin() + 1), *label, vocab);
  }
}

}  // namespace

MicroBatch read_samples(const OpContext& ctx, const Dataset& dataset,
                        const models::ArchitectureInfo& info, std::span<const int64_t> indices) {
  const auto count = static_cast<int64_t>(indices.size());
  const bool token_labels = info.head != models::Head::kClassification;
  const int64_t length = dataset.sequence_length();
  const DatasetFields fields = dataset.fields();
  const auto rows = [&](bool wanted, DType type) {
    return wanted ? ctx.workspace(type, {count, length}) : Tensor();
  };
  MicroBatch out;
  out.ids = rows(true, DType::kInt32);
  out.labels = rows(true, DType::kInt32);
  out.mask = rows(fields.mask, DType::kUInt8);
  out.segments = rows(fields.segments, DType::kInt32);
  out.token_types = rows(fields.token_types, DType::kInt32);
  const Tensor classes = token_labels ? Tensor() : ctx.workspace(DType::kInt32, {count, 1});
  for (int64_t i = 0; i < count; ++i) {
    const auto row = [&]<class T>(const Tensor& tensor, T) {
      return tensor ? std::span<T>(tensor.data<T>() + i * length, static_cast<size_t>(length))
                    : std::span<T>();
    };
    SampleView view;
    view.ids = row(out.ids, int32_t{});
    view.labels = row(out.labels, int32_t{});
    view.mask = row(out.mask, uint8_t{});
    view.segments = row(out.segments, int32_t{});
    view.token_types = row(out.token_types, int32_t{});
    if (classes) view.sentence_order = {classes.data<int32_t>() + i, 1};
    const int64_t index = indices[static_cast<size_t>(i)];
    dataset.sample(index, view);
    check_sample(dataset, index, view, info.vocab_size, token_labels);
  }
  if (classes) out.labels = classes;
  return out;
}

void check_dataset(const Dataset& dataset, const models::ArchitectureInfo& info) {
  DS_CHECK(dataset.sequence_length() <= info.max_positions, Code::kInvalidArgument,
           "the data set's sequences of ", dataset.sequence_length(),
           " tokens are longer than the model's ", info.max_positions, " positions");
  DS_CHECK(dataset.sample_count() > 0, Code::kInvalidArgument, "the data set has no samples");
  DS_CHECK(
      info.head != models::Head::kClassification || dataset.fields().sentence_order,
      Code::kInvalidArgument,
      "the data set's labels are tokens, and the model predicts a class of a whole sample: a "
      "data set of pairs is needed (kind mlm), whose order is the class, or labels of your own");
}

}  // namespace ds
