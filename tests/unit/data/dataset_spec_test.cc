// Data sets behind the common interface: GPT samples as ids and labels, blends, and the
// specifications that open them.
#include "data/dataset_spec.h"

#include <numeric>

#include "data/blend_dataset.h"
#include "data/gpt_dataset.h"
#include "data/indexed_dataset.h"
#include "fresh_seed.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

// `documents` sequences whose tokens count up from `first`.
void write_counting(const std::filesystem::path& prefix, int documents, int each, int32_t first) {
  IndexedDatasetWriter writer(prefix, TokenType::kI32);
  for (int d = 0; d < documents; ++d) {
    std::vector<int32_t> tokens(static_cast<size_t>(each));
    std::iota(tokens.begin(), tokens.end(), first);
    first += each;
    writer.add_sequence(std::span<const int32_t>(tokens));
    writer.end_document();
  }
  writer.finish();
}

struct Sample {
  std::vector<int32_t> ids, labels;
};
Sample read(const Dataset& dataset, int64_t index) {
  const auto length = static_cast<size_t>(dataset.sequence_length());
  Sample out{std::vector<int32_t>(length), std::vector<int32_t>(length)};
  dataset.sample(index, SampleView{.ids = out.ids, .labels = out.labels});
  return out;
}

TEST(Dataset, GptSamplesAreShiftedByOne) {
  TempFolder folder;
  write_counting(folder / "a", 10, 13, 5);
  DatasetSpec spec{.path = folder / "a", .sequence_length = 6, .split = "1"};
  const DatasetPtr dataset = open_dataset(spec, nullptr);
  ASSERT_EQ(dataset->sample_count(), (130 - 1) / 6);
  const auto gpt = std::dynamic_pointer_cast<const GptDataset>(dataset);
  ASSERT_NE(gpt, nullptr);
  for (int64_t i = 0; i < dataset->sample_count(); ++i) {
    const Sample sample = read(*dataset, i);
    std::vector<int32_t> tokens(7);
    gpt->sample(i, std::span(tokens));
    EXPECT_EQ(sample.ids, std::vector<int32_t>(tokens.begin(), tokens.end() - 1));
    EXPECT_EQ(sample.labels, std::vector<int32_t>(tokens.begin() + 1, tokens.end()));
  }
  std::vector<int32_t> six(6), five(5);
  std::vector<uint8_t> mask(6);
  expect_error(Code::kInvalidArgument, {"sample 21"},
               [&] { dataset->sample(21, SampleView{.ids = six, .labels = six}); });
  expect_error(Code::kInvalidArgument, {"labels", "5"},
               [&] { dataset->sample(0, SampleView{.ids = six, .labels = five}); });
  expect_error(Code::kInvalidArgument, {"mask", "6"},
               [&] { dataset->sample(0, SampleView{.ids = six, .labels = six, .mask = mask}); });
}

TEST(Blend, GoldenOrder) {
  const std::vector<double> weights = {3, 5, 2};
  const BlendIndex index = build_blend_index(weights, 12);
  EXPECT_EQ(index.members, (std::vector<uint8_t>{1, 0, 2, 1, 0, 1, 2, 1, 0, 1, 0, 1}));
  EXPECT_EQ(index.samples, (std::vector<int64_t>{0, 0, 0, 1, 1, 2, 1, 3, 2, 4, 3, 5}));
  EXPECT_EQ(index.taken, (std::vector<int64_t>{4, 6, 2}));
  EXPECT_EQ(blend_counts(weights, 1000), (std::vector<int64_t>{302, 503, 201}));
}

TEST(Blend, EveryShareIsKept) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> weights(1 + random() % 12);
    double sum = 0;
    for (double& weight : weights) sum += weight = 1.0 + static_cast<double>(random() % 1000);
    const auto size = static_cast<int64_t>(random() % 3000);
    const BlendIndex index = build_blend_index(weights, size);
    std::vector<int64_t> next(weights.size());
    for (size_t i = 0; i < index.members.size(); ++i) {
      const size_t d = index.members[i];
      ASSERT_EQ(index.samples[i], next[d]++);
      // Never further off than the number of data sets.
      ASSERT_LE(std::abs(static_cast<double>(next[d]) - weights[d] / sum * static_cast<double>(i)),
                static_cast<double>(weights.size()) + 1);
    }
    ASSERT_EQ(next, index.taken);
  }
}

TEST(Blend, OpensMembersByWeight) {
  TempFolder folder;
  for (int d = 0; d < 3; ++d) write_counting(folder / std::to_string(d), 20, 9, d * 1000);
  DatasetSpec spec{.kind = DatasetKind::kBlend, .sequence_length = 4, .samples = 200, .split = "1"};
  for (int d = 0; d < 3; ++d) spec.members.push_back({.path = folder / std::to_string(d)});
  spec.weights = {0.3, 0.5, 0.2};
  const DatasetPtr blend = open_dataset(spec, nullptr);
  EXPECT_EQ(blend->sample_count(), 61 + 101 + 41);
  const BlendIndex index = build_blend_index(spec.weights, blend->sample_count());
  for (size_t d = 0; d < 3; ++d) {
    const std::vector<int64_t> counts = {61, 101, 41};
    const DatasetSpec alone{
        .path = spec.members[d].path, .sequence_length = 4, .samples = counts[d], .split = "1"};
    const DatasetPtr member = open_dataset(alone, nullptr);
    for (size_t i = 0; i < index.members.size(); ++i) {
      if (index.members[i] != d) continue;
      const Sample from_blend = read(*blend, static_cast<int64_t>(i));
      const Sample from_member = read(*member, index.samples[i]);
      ASSERT_EQ(from_blend.ids, from_member.ids);
      ASSERT_EQ(from_blend.labels, from_member.labels);
      ASSERT_EQ(from_blend.ids[0] / 1000, static_cast<int32_t>(d));
    }
  }

  // Another seed, another order in the members.
  spec.seed = 99;
  const DatasetPtr other = open_dataset(spec, nullptr);
  bool differs = false;
  for (int64_t i = 0; i < 20; ++i) differs = differs || read(*other, i).ids != read(*blend, i).ids;
  EXPECT_TRUE(differs);
}

TEST(Blend, WithoutWeightsTakesEverythingOnce) {
  TempFolder folder;
  for (int d = 0; d < 3; ++d) {
    write_counting(folder / std::to_string(d), 5 * (d + 1), 9, d * 1000);
  }
  DatasetSpec spec{.kind = DatasetKind::kBlend, .sequence_length = 4, .split = "1"};
  int64_t sum = 0;
  for (int d = 0; d < 3; ++d) {
    spec.members.push_back({.path = folder / std::to_string(d)});
    sum += (45 * (d + 1) - 1) / 4;
  }
  const DatasetPtr all = open_dataset(spec, nullptr);
  EXPECT_EQ(all->sample_count(), sum);
  const auto& taken = dynamic_cast<const BlendDataset&>(*all).index().taken;
  for (int d = 0; d < 3; ++d) EXPECT_EQ(taken[static_cast<size_t>(d)], (45 * (d + 1) - 1) / 4);
  spec.samples = 7;
  EXPECT_EQ(open_dataset(spec, nullptr)->sample_count(), 7);
  spec.samples = 100000;
  EXPECT_EQ(open_dataset(spec, nullptr)->sample_count(), sum);
}

TEST(Blend, RefusesWhatCannotBe) {
  const std::vector<double> none, zeros = {0, 0}, negative = {1, -1}, two = {1, 1};
  const std::vector<double> nan = {1, std::nan("")}, many(256, 1.0);
  for (const auto* weights : {&none, &zeros, &negative, &nan, &many}) {
    expect_error(Code::kInvalidArgument, {"blend"}, [&] { build_blend_index(*weights, 3); });
  }
  expect_error(Code::kInvalidArgument, {"-1"}, [&] { build_blend_index(two, -1); });
  const std::vector<int64_t> quotas = {2, 1};
  EXPECT_EQ(build_blend_index(two, 3, quotas).taken, quotas);
  expect_error(Code::kInvalidArgument, {"hold only 3"}, [&] { build_blend_index(two, 4, quotas); });

  TempFolder folder;
  write_counting(folder / "a", 5, 9, 0);
  const auto blend = [&](std::vector<double> weights, std::optional<int64_t> samples) {
    DatasetSpec spec{.kind = DatasetKind::kBlend, .sequence_length = 4, .samples = samples};
    spec.split = "1";
    spec.members = {{.path = folder / "a"}};
    spec.weights = std::move(weights);
    return open_dataset(spec, nullptr);
  };
  EXPECT_EQ(blend({1.0}, 5)->sample_count(), 6);
  expect_error(Code::kConfig, {"/weights", "2 numbers for 1"}, [&] { blend({1.0, 2.0}, 5); });
  expect_error(Code::kConfig, {"/samples"}, [&] { blend({1.0}, std::nullopt); });

  // A member with fewer samples than the blend draws.
  const DatasetPtr small =
      open_dataset({.path = folder / "a", .sequence_length = 4, .split = "1"}, nullptr);
  const DatasetPtr longer =
      open_dataset({.path = folder / "a", .sequence_length = 5, .split = "1"}, nullptr);
  expect_error(Code::kInvalidArgument, {"has 11 samples", "12"},
               [&] { BlendDataset({small}, build_blend_index(std::vector{1.0}, 12)); });
  expect_error(Code::kInvalidArgument, {"sequences of 5"}, [&] {
    BlendDataset({small, longer}, build_blend_index(two, 2));
  });
}

TEST(DatasetSpec, NamesTheBadField) {
  TempFolder folder;
  write_counting(folder / "a", 5, 9, 0);
  const DatasetSpec good{.path = folder / "a", .sequence_length = 4, .split = "1"};
  const auto expect_refusal = [&](const char* field, const auto& change) {
    DatasetSpec spec = good;
    change(spec);
    expect_error(Code::kConfig, {field}, [&] { open_dataset(spec, nullptr); });
  };
  expect_refusal("/sequence_length", [](DatasetSpec& s) { s.sequence_length = 0; });
  expect_refusal("/samples", [](DatasetSpec& s) { s.samples = 0; });
  expect_refusal("/path", [](DatasetSpec& s) { s.path.clear(); });
  expect_refusal("/weights", [](DatasetSpec& s) { s.weights = {1.0}; });
  expect_refusal("/split", [](DatasetSpec& s) { s.split = "a,b"; });
  expect_refusal("/split", [](DatasetSpec& s) { s.part = Split::kTest; });
  expect_error(Code::kNotFound, {"nowhere"}, [&] {
    DatasetSpec spec = good;
    spec.path = folder / "nowhere";
    open_dataset(spec, nullptr);
  });
  for (const DatasetKind kind : {DatasetKind::kGpt, DatasetKind::kBlend}) {
    EXPECT_EQ(dataset_kind(dataset_kind_name(kind)), kind);
  }
  EXPECT_EQ(dataset_kind("gtp"), std::nullopt);
}

}  // namespace
}  // namespace ds
