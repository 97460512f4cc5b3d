// Several data sets as one, drawn from by weight: Megatron's blending.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace ds {

// Where each sample of a blend comes from.
struct BlendIndex {
  std::vector<uint8_t> members;
  std::vector<int64_t> samples;  // the member's sample
  std::vector<int64_t> taken;    // samples drawn from each member
};

// Sample i comes from the member that is furthest behind its share of i, the first of them on ties.
// Weights need not add up to 1. With `quotas`, a member that gave that many gives no more.
BlendIndex build_blend_index(std::span<const double> weights, int64_t size,
                             std::span<const int64_t> quotas = {});

// Samples to ask of each member for `samples` of the blend: half a percent more than its share.
std::vector<int64_t> blend_counts(std::span<const double> weights, int64_t samples);

class BlendDataset final : public Dataset {
 public:
  // The members must have the same sequence length and at least as many samples as are taken.
  // Fields that one of them has are filled for the others: one segment, type 0, no padding.
  BlendDataset(std::vector<DatasetPtr> members, BlendIndex index);

  int64_t sample_count() const noexcept override {
    return static_cast<int64_t>(index_.samples.size());
  }
  int64_t sequence_length() const noexcept override { return length_; }
  DatasetFields fields() const noexcept override { return fields_; }
  void sample(int64_t index, const SampleView& out) const override;
  std::string place(int64_t index, int64_t position) const override;
  bool check_tokens(int64_t vocab, int64_t most) const override;

  const BlendIndex& index() const noexcept { return index_; }

 private:
  std::vector<DatasetPtr> members_;
  BlendIndex index_;
  int64_t length_ = 0;
  DatasetFields fields_;
};

}  // namespace ds
