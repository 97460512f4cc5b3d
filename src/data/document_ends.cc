#include "data/document_ends.h"

#include "base/error.h"

namespace ds {

DocumentEndsDataset::DocumentEndsDataset(DatasetPtr inner, const DocumentEnds& ends)
    : inner_(std::move(inner)), ends_(ends) {
  DS_CHECK(inner_ != nullptr && !inner_->fields().segments, Code::kInvalidArgument,
           "documents are kept apart in a data set of running tokens, which has no segments");
}

DatasetFields DocumentEndsDataset::fields() const {
  DatasetFields fields = inner_->fields();
  fields.segments = ends_.separate;
  return fields;
}

void DocumentEndsDataset::sample(int64_t index, const SampleView& out) const {
  check_sample_view(*this, index, out, "running tokens");
  SampleView of_inner = out;
  of_inner.segments = {};
  inner_->sample(index, of_inner);
  int32_t document = 0;
  for (size_t i = 0; i < out.ids.size(); ++i) {
    if (!out.segments.empty()) out.segments[i] = document;
    if (out.ids[i] != ends_.token) continue;
    if (ends_.ignore_next) out.labels[i] = kNoLabel;
    ++document;
  }
}

}  // namespace ds
