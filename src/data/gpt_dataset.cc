#include "data/gpt_dataset.h"

#include <algorithm>

#include "base/error.h"

namespace ds {
namespace {

std::vector<int32_t> sizes_of(const TokenSource& source, SequenceRange range) {
  DS_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= source.sequence_count(),
           Code::kInvalidArgument, source.name(), ": sequences ", range.begin, " to ", range.end,
           " of ", source.sequence_count());
  std::vector<int32_t> sizes(static_cast<size_t>(range.size()));
  for (int64_t i = 0; i < range.size(); ++i) {
    sizes[static_cast<size_t>(i)] = source.sequence_size(range.begin + i);
  }
  return sizes;
}

const TokenSource& require(const TokenSourcePtr& source) {
  DS_CHECK(source != nullptr, Code::kInvalidArgument, "a GPT data set needs a token source");
  return *source;
}

}  // namespace

GptDataset::GptDataset(TokenSourcePtr source, SequenceRange range, const GptIndexOptions& options,
                       std::string_view name, const GptSampleOptions& samples)
    : source_(std::move(source)),
      range_(range),
      length_(options.sequence_length),
      name_(str_cat(require(source_).name(), ", ", name, " part")),
      samples_(samples),
      index_(build_gpt_index(sizes_of(*source_, range), range.begin, options, name_)) {
  DS_CHECK(samples.end_id || !(samples.mask_end_loss || samples.part_documents),
           Code::kInvalidArgument, name_, ": documents have no token that ends them");
}

int64_t GptDataset::sample(int64_t i, std::span<int32_t> out) const {
  DS_CHECK(i >= 0 && i < sample_count(), Code::kInvalidArgument, name_, ": sample ", i,
           " does not exist; there are ", sample_count());
  DS_CHECK(static_cast<int64_t>(out.size()) == length_ + 1, Code::kInvalidArgument, name_,
           ": a sample has ", length_ + 1, " tokens, the buffer ", out.size());
  const auto start = static_cast<size_t>(index_.order[static_cast<size_t>(i)]);
  auto position = static_cast<size_t>(index_.start_positions[start]);
  int64_t offset = index_.start_offsets[start];
  while (!out.empty() && position < index_.documents.size()) {
    const int32_t sequence = index_.documents[position];
    const int64_t rest = source_->sequence_size(sequence) - offset;
    const size_t take = std::min(out.size(), static_cast<size_t>(rest));
    source_->read(sequence, offset, out.first(take));
    out = out.subspan(take);
    ++position;
    offset = 0;
  }
  std::fill(out.begin(), out.end(), samples_.pad_id);
  return length_ + 1 - static_cast<int64_t>(out.size());
}

void GptDataset::sample(int64_t i, std::span<int64_t> out) const {
  std::vector<int32_t> narrow(out.size());
  sample(i, std::span(narrow));
  std::copy(narrow.begin(), narrow.end(), out.begin());
}

void GptDataset::sample(int64_t i, const SampleView& out) const {
  check_sample_view(*this, i, out, name_);
  std::vector<int32_t> tokens(static_cast<size_t>(length_) + 1);
  const int64_t count = sample(i, std::span(tokens));
  std::copy_n(tokens.begin(), length_, out.ids.begin());
  std::copy_n(tokens.begin() + 1, length_, out.labels.begin());
  std::fill(out.labels.begin() + (count - 1), out.labels.end(), kNoLabel);
  int32_t document = 0;
  for (size_t t = 0; t < out.ids.size(); ++t) {
    if (samples_.part_documents) out.segments[t] = document;
    if (out.ids[t] != samples_.end_id) continue;
    ++document;  // the end belongs to the document that it ends
    if (samples_.mask_end_loss) out.labels[t] = kNoLabel;
  }
}

std::string GptDataset::place(int64_t i, int64_t position) const {
  const auto start = static_cast<size_t>(index_.order[static_cast<size_t>(i)]);
  auto at = static_cast<size_t>(index_.start_positions[start]);
  int64_t offset = index_.start_offsets[start] + position;
  while (offset >= source_->sequence_size(index_.documents[at])) {
    offset -= source_->sequence_size(index_.documents[at++]);
    if (at == index_.documents.size()) return str_cat(name_, ": the padding of sample ", i);
  }
  return source_->place(index_.documents[at], offset);
}

bool GptDataset::check_tokens(int64_t vocab, int64_t most) const {
  int64_t tokens = 0;
  for (int64_t i = range_.begin; i < range_.end && tokens <= most; ++i) {
    tokens += source_->sequence_size(i);
  }
  if (tokens > most) return false;
  source_->check_tokens(range_.begin, range_.end, vocab);
  return true;
}

std::shared_ptr<const GptDataset> make_gpt_dataset(const TokenSourcePtr& source,
                                                   std::string_view split, Split part,
                                                   const GptIndexOptions& options,
                                                   SplitRounding rounding,
                                                   const GptSampleOptions& samples) {
  const SequenceRange range = split_range(split, part, require(source).sequence_count(), rounding);
  if (range.size() == 0) return nullptr;
  return std::make_shared<GptDataset>(source, range, options, split_name(part), samples);
}

}  // namespace ds
