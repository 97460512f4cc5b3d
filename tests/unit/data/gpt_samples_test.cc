// What samples of running tokens say besides their tokens: documents that are kept apart, labels
// that do not count, and the last sample of validation data.
#include <set>

#include "data/dataset_spec.h"
#include "data/gpt_dataset.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

using Ids = std::vector<int32_t>;
constexpr int32_t kEnd = 9;

struct Tokens {
  Ids ids, labels, segments;
};
Tokens read_tokens(const Dataset& dataset, int64_t index) {
  const auto length = static_cast<size_t>(dataset.sequence_length());
  Tokens out{Ids(length), Ids(length), Ids(dataset.fields().segments ? length : 0)};
  dataset.sample(index, {.ids = out.ids, .labels = out.labels, .segments = out.segments});
  return out;
}

// One sequence, so that nothing is shuffled but the samples.
GptDataset of_tokens(Ids tokens, int64_t length, const GptSampleOptions& samples,
                     bool partial = false) {
  const auto count = static_cast<int64_t>(tokens.size());
  GptIndexOptions options{.sequence_length = length};
  options.keep_partial = partial;
  return GptDataset(std::make_shared<MemoryTokens>(std::move(tokens), std::vector{count}, "tokens"),
                    {0, 1}, options, "valid", samples);
}

// Megatron's get_ltor_masks_and_position_ids: what follows an end, which is still of its document,
// sees nothing before it, and positions begin again. Here that is a number per document.
TEST(GptSamples, DocumentsArePartedBehindTheirEnds) {
  const Ids tokens = {1, 2, kEnd, 3, kEnd, kEnd, 4, 5, 6};
  const GptDataset plain = of_tokens(tokens, 8, {.end_id = kEnd});
  EXPECT_FALSE(plain.fields().segments);
  EXPECT_EQ(read_tokens(plain, 0).labels, (Ids{2, kEnd, 3, kEnd, kEnd, 4, 5, 6}));

  const Tokens parted =
      read_tokens(of_tokens(tokens, 8, {.end_id = kEnd, .part_documents = true}), 0);
  EXPECT_EQ(parted.ids, (Ids{1, 2, kEnd, 3, kEnd, kEnd, 4, 5}));
  EXPECT_EQ(parted.labels, (Ids{2, kEnd, 3, kEnd, kEnd, 4, 5, 6}));
  EXPECT_EQ(parted.segments, (Ids{0, 0, 0, 1, 1, 2, 3, 3}));

  const Tokens masked =
      read_tokens(of_tokens(tokens, 8, {.end_id = kEnd, .mask_end_loss = true}), 0);
  EXPECT_EQ(masked.ids, parted.ids);
  EXPECT_EQ(masked.labels, (Ids{2, kEnd, kNoLabel, kEnd, kNoLabel, kNoLabel, 5, 6}));
  EXPECT_TRUE(masked.segments.empty());

  expect_error(Code::kInvalidArgument, {"no token that ends"},
               [&] { of_tokens(tokens, 8, {.part_documents = true}); });
}

TEST(GptSamples, TheLastOfAValidationPartEndsEarly) {
  for (int64_t count = 2; count < 20; ++count) {
    Ids tokens;
    for (int64_t t = 0; t < count; ++t) tokens.push_back(static_cast<int32_t>(10 + t));
    const GptDataset data = of_tokens(tokens, 4, {.pad_id = 7}, true);
    ASSERT_EQ(data.sample_count(), (count - 1 + 3) / 4) << count;
    std::set<int32_t> learned;
    for (int64_t i = 0; i < data.sample_count(); ++i) {
      const Tokens sample = read_tokens(data, i);
      for (size_t t = 0; t < 4; ++t) {
        const bool there = sample.labels[t] != kNoLabel;
        if (!there) {
          // What is behind the last token is padding; the last token itself has nothing to predict.
          EXPECT_TRUE(sample.ids[t] == 7 || sample.ids[t] == tokens.back());
          continue;
        }
        EXPECT_EQ(sample.labels[t], sample.ids[t] + 1);
        EXPECT_TRUE(learned.insert(sample.labels[t]).second);
      }
    }
    EXPECT_EQ(learned, std::set<int32_t>(tokens.begin() + 1, tokens.end())) << count;
    EXPECT_FALSE(data.place(data.sample_count() - 1, 4).empty());
  }
  EXPECT_EQ(of_tokens(Ids(9, 1), 4, {}, true).sample_count(), 2);
  expect_error(Code::kInvalidArgument, {"needs 2"}, [] { of_tokens({1}, 4, {}, true); });
}

class GptSpecs : public testing::Test {
 protected:
  GptSpecs() { write_bytes(folder_ / "text.txt", std::string(4003, 'x')); }
  DatasetSpec spec(Split part) const {
    DatasetSpec out{.path = folder_ / "text.txt", .sequence_length = 8, .split = "3,1"};
    out.part = part;
    out.eod_id = 'e';
    return out;
  }
  TempFolder folder_;
};

TEST_F(GptSpecs, OnlyValidationKeepsAPartialSample) {
  for (const Split part : {Split::kTrain, Split::kValid}) {
    DatasetSpec whole = spec(part), partial = whole;
    partial.keep_partial = true;
    const int64_t samples = open_dataset(whole, nullptr)->sample_count();
    const auto kept = open_dataset(partial, nullptr);
    EXPECT_EQ(kept->sample_count(), samples + (part == Split::kValid ? 1 : 0));
    if (part == Split::kTrain) continue;
    int64_t padded = 0;
    for (int64_t i = 0; i < kept->sample_count(); ++i)
      padded += read_tokens(*kept, i).ids[7] == 'e';
    EXPECT_EQ(padded, 1);
  }
}

TEST_F(GptSpecs, DocumentsNeedAnEnd) {
  DatasetSpec parted = spec(Split::kTrain);
  parted.part_documents = true;
  EXPECT_TRUE(open_dataset(parted, nullptr)->fields().segments);
  parted.eod_id.reset();
  expect_error(Code::kConfig, {"/eod_id"}, [&] { open_dataset(parted, nullptr); });
}

// A part without a share is no error to whoever asks for the parts of a source.
TEST_F(GptSpecs, APartWithoutAShareIsNoDataSet) {
  const auto source = cut_running_tokens(Ids(1000, 1), 8, "ones");
  for (const Split part : {Split::kValid, Split::kTest}) {
    EXPECT_EQ(make_gpt_dataset(source, "1,0,0", part, {.sequence_length = 8}), nullptr);
  }
  EXPECT_NE(make_gpt_dataset(source, "1,0,0", Split::kTrain, {.sequence_length = 8}), nullptr);
}

}  // namespace
}  // namespace ds
