#include "data/blend_dataset.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace ds {
namespace {

constexpr size_t kMaxMembers = 255;                       // a byte each in the index
constexpr int64_t kMaxBlendedSamples = int64_t{1} << 33;  // nine bytes each in the index

std::vector<double> normalised(std::span<const double> weights) {
  DS_CHECK(!weights.empty() && weights.size() <= kMaxMembers, Code::kInvalidArgument, "a blend of ",
           weights.size(), " data sets; from 1 to ", kMaxMembers, " can be blended");
  double sum = 0;
  for (const double weight : weights) {
    DS_CHECK(std::isfinite(weight) && weight >= 0, Code::kInvalidArgument, "a blend weight is ",
             weight, "; weights must be finite and not negative");
    sum += weight;
  }
  DS_CHECK(sum > 0 && std::isfinite(sum), Code::kInvalidArgument, "the blend weights add up to ",
           sum);
  std::vector<double> shares(weights.begin(), weights.end());
  for (double& share : shares) share /= sum;
  return shares;
}

}  // namespace

BlendIndex build_blend_index(std::span<const double> weights, int64_t size,
                             std::span<const int64_t> quotas) {
  const std::vector<double> shares = normalised(weights);
  DS_CHECK(size >= 0 && size <= kMaxBlendedSamples, Code::kInvalidArgument, "a blend of ", size,
           " samples; at most ", kMaxBlendedSamples, " can be indexed");
  DS_CHECK(quotas.empty() || quotas.size() == shares.size(), Code::kInvalidArgument, quotas.size(),
           " quotas for ", shares.size(), " data sets of a blend");
  BlendIndex index;
  index.taken.assign(shares.size(), 0);
  index.members.reserve(static_cast<size_t>(size));
  index.samples.reserve(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const auto drawn = static_cast<double>(std::max<int64_t>(i, 1));
    size_t best = shares.size();
    double largest = 0;
    for (size_t d = 0; d < shares.size(); ++d) {
      if (!quotas.empty() && index.taken[d] >= quotas[d]) continue;
      const double error = shares[d] * drawn - static_cast<double>(index.taken[d]);
      if (best == shares.size() || error > largest) {
        best = d;
        largest = error;
      }
    }
    DS_CHECK(best < shares.size(), Code::kInvalidArgument, "a blend of ", size,
             " samples, but its data sets hold only ", i);
    index.members.push_back(static_cast<uint8_t>(best));
    index.samples.push_back(index.taken[best]++);
  }
  return index;
}

std::vector<int64_t> blend_counts(std::span<const double> weights, int64_t samples) {
  DS_CHECK(samples >= 0 && samples <= kMaxBlendedSamples, Code::kInvalidArgument, "a blend of ",
           samples, " samples; at most ", kMaxBlendedSamples, " can be indexed");
  std::vector<int64_t> counts;
  for (const double share : normalised(weights)) {
    counts.push_back(static_cast<int64_t>(std::ceil(static_cast<double>(samples) * share * 1.005)));
  }
  return counts;
}

BlendDataset::BlendDataset(std::vector<DatasetPtr> members, BlendIndex index)
    : members_(std::move(members)), index_(std::move(index)) {
  DS_CHECK(!members_.empty() && members_.size() == index_.taken.size(), Code::kInvalidArgument,
           "a blend of ", members_.size(), " data sets with an index for ", index_.taken.size());
  for (size_t d = 0; d < members_.size(); ++d) {
    const DatasetPtr& member = members_[d];
    DS_CHECK(member != nullptr, Code::kInvalidArgument, "data set ", d, " of a blend is missing");
    if (d == 0) length_ = member->sequence_length();
    DS_CHECK(member->sequence_length() == length_, Code::kInvalidArgument, "data set ", d,
             " of a blend has sequences of ", member->sequence_length(),
             " tokens, the first one of ", length_);
    DS_CHECK(member->sample_count() >= index_.taken[d], Code::kInvalidArgument, "data set ", d,
             " of a blend has ", member->sample_count(), " samples, but ", index_.taken[d],
             " are taken from it");
    const DatasetFields fields = member->fields();
    fields_.segments |= fields.segments;
    fields_.token_types |= fields.token_types;
    fields_.mask |= fields.mask;
    // A class that no text has must not be made up: all have it, or the blend has not.
    fields_.sentence_order = fields.sentence_order && (d == 0 || fields_.sentence_order);
  }
}

void BlendDataset::sample(int64_t index, const SampleView& out) const {
  check_sample_view(*this, index, out, "blend");
  const auto i = static_cast<size_t>(index);
  const Dataset& member = *members_[index_.members[i]];
  const DatasetFields fields = member.fields();
  SampleView view = out;
  if (!fields.segments) {
    std::fill(out.segments.begin(), out.segments.end(), 0);
    view.segments = {};
  }
  if (!fields.token_types) {
    std::fill(out.token_types.begin(), out.token_types.end(), 0);
    view.token_types = {};
  }
  if (!fields.mask) {
    std::fill(out.mask.begin(), out.mask.end(), uint8_t{1});
    view.mask = {};
  }
  member.sample(index_.samples[i], view);
}

std::string BlendDataset::place(int64_t index, int64_t position) const {
  const auto i = static_cast<size_t>(index);
  return members_[index_.members[i]]->place(index_.samples[i], position);
}

bool BlendDataset::check_tokens(int64_t vocab, int64_t most) const {
  bool all = true;
  for (const DatasetPtr& member : members_) all = member->check_tokens(vocab, most) && all;
  return all;
}

}  // namespace ds
