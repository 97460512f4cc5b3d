#include "data/gpt_index.h"

#include <numeric>

#include "base/error.h"
#include "data/numpy_random.h"

namespace ds {
namespace {

// Twelve bytes per sample and four per sequence and epoch: past these the index is tens of
// gigabytes, which is a mistyped number rather than a wish.
constexpr int64_t kMaxGptSamples = int64_t{1} << 33;
constexpr int64_t kMaxDocuments = int64_t{1} << 34;

struct Plan {
  int64_t epochs = 1;
  int64_t total = 0;  // samples in all epochs
  bool separate = false;
  int64_t before = 0;  // samples of all but the last epoch
};

Plan make_plan(int64_t tokens, const GptIndexOptions& options, std::string_view what) {
  const int64_t length = options.sequence_length;
  const auto samples_in = [&](int64_t epochs) {
    int64_t all = 0;
    DS_CHECK(!__builtin_mul_overflow(epochs, tokens, &all), Code::kInvalidArgument, what, ": ",
             epochs, " epochs of ", tokens, " tokens are too many");
    return (all - 1 + (options.keep_partial ? length - 1 : 0)) / length;
  };
  const int64_t requested = options.samples.value_or(samples_in(options.epochs.value_or(1)));
  Plan plan;
  if (options.epochs || !options.samples) {
    plan.epochs = options.epochs.value_or(1);
  } else {
    DS_CHECK(requested <= kMaxGptSamples && requested <= (INT64_MAX - 1) / length - 1,
             Code::kInvalidArgument, what, ": ", requested, " samples are too many; at most ",
             kMaxGptSamples, " can be indexed");
    // The smallest E with E * tokens - 1 >= requested * length.
    plan.epochs = (requested * length) / tokens + 1;
  }
  plan.total = samples_in(plan.epochs);
  DS_CHECK(plan.total <= kMaxGptSamples, Code::kInvalidArgument, what, ": ", plan.epochs,
           " epochs hold ", plan.total, " samples; at most ", kMaxGptSamples, " can be indexed");
  if (plan.epochs == 1) return plan;

  plan.before = samples_in(plan.epochs - 1);
  const int64_t last = requested - plan.before;
  const int64_t per_epoch = samples_in(1);
  DS_CHECK(last >= 0 && last <= per_epoch + 1, Code::kInvalidArgument, what, ": ", plan.epochs,
           " epochs hold ", plan.before, " to ", plan.total, " samples, but ", requested,
           " are asked for; leave out the number of epochs, or change the number of samples");
  plan.separate = last < static_cast<int64_t>(0.80 * static_cast<double>(per_epoch));
  return plan;
}

void build_documents(GptIndex& index, int64_t first, int64_t count, const Plan& plan,
                     NumpyRandom& random) {
  index.documents.resize(static_cast<size_t>(count * plan.epochs));
  for (size_t i = 0; i < index.documents.size(); ++i) {
    index.documents[i] = static_cast<int32_t>(first + static_cast<int64_t>(i) % count);
  }
  const std::span<int32_t> all(index.documents);
  if (plan.separate) {
    const auto head = static_cast<size_t>(count * (plan.epochs - 1));
    random.shuffle(all.first(head));
    random.shuffle(all.subspan(head));
  } else {
    random.shuffle(all);
  }
}

void build_starts(GptIndex& index, std::span<const int32_t> sizes, int64_t first, int64_t length,
                  int64_t total) {
  index.start_positions.reserve(static_cast<size_t>(total) + 1);
  index.start_offsets.reserve(static_cast<size_t>(total) + 1);
  int64_t position = 0, offset = 0;
  index.start_positions.push_back(0);
  index.start_offsets.push_back(0);
  for (int64_t sample = 0; sample < total; ++sample) {
    // A sample has one token more than its length, which the next sample begins with.
    int64_t need = length + 1;
    for (;;) {
      const int32_t document = index.documents[static_cast<size_t>(position)];
      const int64_t rest = sizes[static_cast<size_t>(document - first)] - offset;
      if (rest < need && position + 1 == static_cast<int64_t>(index.documents.size())) {
        offset += rest - 1;  // the last sample, which ends early
        break;
      }
      if (rest >= need) {
        offset += need - 1;
        break;
      }
      need -= rest;
      ++position;
      offset = 0;
    }
    index.start_positions.push_back(position);
    index.start_offsets.push_back(static_cast<int32_t>(offset));
  }
}

}  // namespace

GptIndex build_gpt_index(std::span<const int32_t> sizes, int64_t first_sequence,
                         const GptIndexOptions& options, std::string_view what) {
  const int64_t length = options.sequence_length;
  DS_CHECK(length > 0 && length < INT32_MAX, Code::kInvalidArgument, what,
           ": the sequence length is ", length, "; it must be at least 1");
  DS_CHECK(options.samples.value_or(0) >= 0, Code::kInvalidArgument, what, ": ",
           options.samples.value_or(0), " samples are asked for");
  DS_CHECK(options.epochs.value_or(1) >= 1, Code::kInvalidArgument, what, ": ",
           options.epochs.value_or(1), " epochs are asked for; at least 1 is needed");
  const auto count = static_cast<int64_t>(sizes.size());
  DS_CHECK(first_sequence >= 0 && count <= INT32_MAX && first_sequence <= INT32_MAX - count,
           Code::kUnsupported, what, ": ", count, " sequences from number ", first_sequence,
           "; at most 2^31 - 1 can be indexed");
  int64_t tokens = 0;
  for (const int32_t size : sizes) {
    DS_CHECK(size >= 0, Code::kInvalidArgument, what, ": a sequence of ", size, " tokens");
    tokens += size;
  }
  const int64_t least = options.keep_partial ? 2 : length + 1;
  DS_CHECK(tokens >= least, Code::kInvalidArgument, what, " holds ", tokens, " tokens in ", count,
           " sequences, but one sample of sequence length ", length, " needs ", least,
           "; give more data, a larger share of the split, or a shorter sequence length");

  const Plan plan = make_plan(tokens, options, what);
  DS_CHECK(plan.epochs <= kMaxDocuments / count, Code::kInvalidArgument, what, ": ", plan.epochs,
           " epochs of ", count, " sequences are too many to index");
  GptIndex index;
  index.epochs = plan.epochs;
  index.separate_last_epoch = plan.separate;
  NumpyRandom random(options.seed);
  build_documents(index, first_sequence, count, plan, random);
  build_starts(index, sizes, first_sequence, length, plan.total);
  index.order.resize(static_cast<size_t>(plan.total));
  std::iota(index.order.begin(), index.order.end(), int64_t{0});
  const std::span<int64_t> order(index.order);
  const auto head = static_cast<size_t>(plan.separate ? plan.before : plan.total);
  random.shuffle(order.first(head));
  random.shuffle(order.subspan(head));
  return index;
}

}  // namespace ds
