// Documents kept apart within samples of running tokens: segments and labels by hand.
#include "data/document_ends.h"

#include "data/dataset_spec.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

constexpr int64_t kLength = 24;

struct Sample {
  std::vector<int32_t> ids = std::vector<int32_t>(kLength);
  std::vector<int32_t> labels = ids, segments = ids;
};

Sample read(const Dataset& dataset, int64_t index) {
  Sample out;
  SampleView view{.ids = out.ids, .labels = out.labels};
  if (dataset.fields().segments) view.segments = out.segments;
  dataset.sample(index, view);
  return out;
}

class DocumentEndsTest : public ::testing::Test {
 protected:
  DocumentEndsTest() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += std::string(static_cast<size_t>(i * 7 % 19), 'a') + ".";
    write_bytes(folder_ / "text.txt", text);
    spec_.path = folder_ / "text.txt";
    spec_.sequence_length = kLength;
    spec_.split = "1";
  }

  TempFolder folder_;
  DatasetSpec spec_;
};

TEST_F(DocumentEndsTest, SegmentsCountDocumentsAndLabelsStopAtTheirEnds) {
  const DatasetPtr plain = open_dataset(spec_, nullptr);
  spec_.eod_id = '.';
  for (const bool separate : {false, true}) {
    for (const bool ignore : {false, true}) {
      if (!separate && !ignore) continue;
      SCOPED_TRACE(str_cat("separate ", separate, ", ignore ", ignore));
      spec_.reset_at_eod = separate;
      spec_.eod_mask_loss = ignore;
      const DatasetPtr dataset = open_dataset(spec_, nullptr);
      ASSERT_EQ(dataset->sample_count(), plain->sample_count());
      EXPECT_EQ(dataset->fields().segments, separate);
      int32_t most = 0;
      for (int64_t i = 0; i < dataset->sample_count(); ++i) {
        const Sample expected = read(*plain, i), sample = read(*dataset, i);
        EXPECT_EQ(sample.ids, expected.ids);
        int32_t document = 0;
        for (size_t t = 0; t < sample.ids.size(); ++t) {
          const bool end = sample.ids[t] == '.';
          EXPECT_EQ(sample.labels[t], end && ignore ? kNoLabel : expected.labels[t]);
          if (separate) {
            EXPECT_EQ(sample.segments[t], document) << "sample " << i << ", position " << t;
          }
          document += end ? 1 : 0;
        }
        most = std::max(most, document);
      }
      EXPECT_GT(most, 2);
    }
  }
}

TEST_F(DocumentEndsTest, AnEndIsNeeded) {
  spec_.eod_id = 3;
  expect_error(Code::kConfig, {"eod_id", "no effect"}, [&] { open_dataset(spec_, nullptr); });
  spec_.eod_id = std::nullopt;
  spec_.reset_at_eod = true;
  expect_error(Code::kConfig, {"eod_id", "missing"}, [&] { open_dataset(spec_, nullptr); });
  EXPECT_THROW(DocumentEndsDataset(nullptr, {}), Error);
}

}  // namespace
}  // namespace ds
