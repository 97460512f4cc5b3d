#include "data/packed_dataset.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "data/numpy_random.h"
#include "data/token_source.h"

namespace ds {
namespace {

constexpr int64_t kMaxPackedSamples = int64_t{1} << 33;  // eight bytes each

// Bins of equal capacity; finds the first with enough room in logarithmic time, from a tree of
// maxima.
class FirstFit {
 public:
  FirstFit(size_t most_bins, int64_t capacity)
      : leaves_(std::bit_ceil(std::max<size_t>(most_bins, 1))), room_(2 * leaves_, capacity) {}

  size_t place(int64_t size) {
    size_t node = 1;
    while (node < leaves_) node = 2 * node + (room_[2 * node] >= size ? 0 : 1);
    const size_t bin = node - leaves_;
    room_[node] -= size;
    for (node /= 2; node > 0; node /= 2)
      room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    return bin;
  }

 private:
  size_t leaves_;
  std::vector<int64_t> room_;
};

}  // namespace

PackedDataset::PackedDataset(std::shared_ptr<const FinetuneCorpus> corpus, SequenceRange range,
                             const PackingOptions& options, std::string name)
    : corpus_(std::move(corpus)), options_(options), name_(std::move(name)) {
  DS_CHECK(corpus_ != nullptr, Code::kInvalidArgument, "a packed data set needs a corpus");
  DS_CHECK(options.sequence_length > 0 && options.sequence_length < INT32_MAX,
           Code::kInvalidArgument, name_, ": the sequence length is ", options.sequence_length,
           "; it must be at least 1");
  DS_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= corpus_->example_count(),
           Code::kInvalidArgument, name_, ": examples ", range.begin, " to ", range.end, " of ",
           corpus_->example_count());
  DS_CHECK(options.samples.value_or(1) >= 0 && options.samples.value_or(1) <= kMaxPackedSamples,
           Code::kInvalidArgument, name_, ": ", options.samples.value_or(1),
           " samples are asked for; from 0 to ", kMaxPackedSamples, " can be indexed");
  std::vector<int64_t> chosen = choose(range);
  DS_CHECK(!chosen.empty(), Code::kInvalidArgument, name_, " holds no example to learn from: of ",
           range.size(), ", ", stats_.skipped, " are longer than ", options.sequence_length,
           " and skipped, ", stats_.without_labels, " have no labels left after the cut");
  NumpyRandom random(options.seed);
  random.shuffle(std::span(chosen));
  pack(chosen);
  shuffle_sequences(random);
}

bool PackedDataset::check_tokens(int64_t vocab, int64_t most) const {
  if (options_.pad_id >= vocab) fail_token(str_cat(name_, ": padding"), options_.pad_id, vocab);
  int64_t tokens = 0;
  for (const int64_t example : examples_) tokens += positions_of(example) + 1;
  if (tokens > most) return false;
  for (const int64_t example : examples_) {
    const auto all = corpus_->example(example);
    const auto used = all.first(static_cast<size_t>(positions_of(example)) + 1);
    for (size_t i = 0; i < used.size(); ++i) {
      const int32_t id = token_of(used[i]);
      if (id >= vocab)
        fail_token(str_cat(name_, ": token ", i, " of example ", example), id, vocab);
    }
  }
  return true;
}

// What is left of an example after the cut.
int64_t PackedDataset::positions_of(int64_t example) const {
  const auto tokens = static_cast<int64_t>(corpus_->example(example).size());
  return std::min(tokens - 1, options_.sequence_length);
}

std::vector<int64_t> PackedDataset::choose(SequenceRange range) {
  std::vector<int64_t> chosen;
  for (int64_t i = range.begin; i < range.end; ++i) {
    const auto tokens = corpus_->example(i);
    if (static_cast<int64_t>(tokens.size()) - 1 > options_.sequence_length) {
      if (options_.too_long == TooLong::kSkip) {
        ++stats_.skipped;
        continue;
      }
      const auto labels = tokens.subspan(1, static_cast<size_t>(options_.sequence_length));
      if (std::none_of(labels.begin(), labels.end(), is_learned)) {
        ++stats_.without_labels;
        continue;
      }
      ++stats_.cut;
    }
    chosen.push_back(i);
    stats_.positions += positions_of(i);
  }
  stats_.examples = static_cast<int64_t>(chosen.size());
  return chosen;
}

void PackedDataset::pack(const std::vector<int64_t>& chosen) {
  std::vector<size_t> bins(chosen.size());
  if (options_.pack) {
    FirstFit fit(chosen.size(), options_.sequence_length);
    for (size_t i = 0; i < chosen.size(); ++i) bins[i] = fit.place(positions_of(chosen[i]));
  } else {
    std::iota(bins.begin(), bins.end(), size_t{0});
  }
  // Counting sort by bin keeps the shuffled order inside of each.
  const size_t count = *std::max_element(bins.begin(), bins.end()) + 1;
  ends_.assign(count, 0);
  for (const size_t bin : bins) ++ends_[bin];
  std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
  std::vector<int64_t> next(count, 0);
  std::copy(ends_.begin(), ends_.end() - 1, next.begin() + 1);
  examples_.resize(chosen.size());
  for (size_t i = 0; i < chosen.size(); ++i) {
    examples_[static_cast<size_t>(next[bins[i]]++)] = chosen[i];
  }
  stats_.sequences = static_cast<int64_t>(count);
}

void PackedDataset::shuffle_sequences(NumpyRandom& random) {
  const int64_t wanted = std::max(options_.samples.value_or(stats_.sequences), stats_.sequences);
  order_.resize(static_cast<size_t>(wanted));
  std::vector<int64_t> pass(ends_.size());
  std::iota(pass.begin(), pass.end(), int64_t{0});
  for (size_t done = 0; done < order_.size();) {
    random.shuffle(std::span(pass));
    const size_t take = std::min(pass.size(), order_.size() - done);
    std::copy_n(pass.begin(), take, order_.begin() + static_cast<std::ptrdiff_t>(done));
    done += take;
  }
}

void PackedDataset::sample(int64_t index, const SampleView& out) const {
  check_sample_view(*this, index, out, name_);
  const auto sequence = static_cast<size_t>(order_[static_cast<size_t>(index)]);
  const auto first = static_cast<size_t>(sequence == 0 ? 0 : ends_[sequence - 1]);
  const auto last = static_cast<size_t>(ends_[sequence]);
  size_t at = 0;
  for (size_t i = first; i < last; ++i) {
    const auto tokens = corpus_->example(examples_[i]);
    const auto count = static_cast<size_t>(positions_of(examples_[i]));
    for (size_t t = 0; t < count; ++t, ++at) {
      out.ids[at] = token_of(tokens[t]);
      out.labels[at] = is_learned(tokens[t + 1]) ? tokens[t + 1] : kNoLabel;
      out.segments[at] = static_cast<int32_t>(i - first);
      out.mask[at] = 1;
    }
  }
  // The padding is a segment of its own, so that no text sees it.
  for (; at < out.ids.size(); ++at) {
    out.ids[at] = options_.pad_id;
    out.labels[at] = kNoLabel;
    out.segments[at] = static_cast<int32_t>(last - first);
    out.mask[at] = 0;
  }
}

}  // namespace ds
