// Running tokens whose documents are kept apart within a sample, as options of Megatron's loader
// do.
#pragma once

#include <cstdint>

#include "data/dataset.h"

namespace ds {

struct DocumentEnds {
  int32_t token = 0;  // that ends documents, and belongs to them
  // Tokens see their own document only, and positions begin again with each.
  bool separate = false;
  // Nothing is learned from what follows an end: it is another document.
  bool ignore_next = false;
};

// `inner` has no segments.
class DocumentEndsDataset final : public Dataset {
 public:
  DocumentEndsDataset(DatasetPtr inner, const DocumentEnds& ends);

  int64_t sample_count() const override { return inner_->sample_count(); }
  int64_t sequence_length() const override { return inner_->sequence_length(); }
  DatasetFields fields() const override;
  void sample(int64_t index, const SampleView& out) const override;
  std::string place(int64_t index, int64_t position) const override {
    return inner_->place(index, position);
  }
  bool check_tokens(int64_t vocab, int64_t most) const override {
    return inner_->check_tokens(vocab, most);
  }

 private:
  DatasetPtr inner_;
  DocumentEnds ends_;
};

}  // namespace ds
