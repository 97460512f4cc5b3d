// Random generators, splits, GPT sample order and samplers against published vectors and plain
// restatements.
#include <algorithm>
#include <numeric>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "data/gpt_dataset.h"
#include "data/numpy_random.h"
#include "data/sampler.h"
#include "fresh_seed.h"
#include "test_paths.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

using Ints = std::vector<int64_t>;

TEST(NumpyRandomTest, PublishedValues) {
  EXPECT_EQ(NumpyRandom(0).random(), 0.5488135039273248);
  EXPECT_EQ(NumpyRandom(0).permutation(10), (Ints{2, 8, 4, 9, 1, 6, 7, 3, 0, 5}));
  EXPECT_EQ(NumpyRandom(42).permutation(10), (Ints{8, 1, 5, 0, 7, 2, 9, 4, 3, 6}));
  NumpyRandom random(0);
  Ints draws(10);
  for (int64_t& draw : draws) draw = random.randint(0, 10);
  EXPECT_EQ(draws, (Ints{5, 0, 3, 3, 7, 9, 3, 5, 2, 4}));
  EXPECT_EQ(torch_randperm(10, 0), (Ints{4, 1, 7, 5, 3, 9, 0, 8, 6, 2}));
}

// RandomState(7): randint(-5, 2**40, 3), randint(3, 4), shuffle of arange(17), random().
TEST(NumpyRandomTest, MoreOfNumpy) {
  NumpyRandom random(7);
  const Ints big = {random.randint(-5, int64_t{1} << 40), random.randint(-5, int64_t{1} << 40),
                    random.randint(-5, int64_t{1} << 40)};
  EXPECT_EQ(big, (Ints{752595690687, 108744157681, 291964244174}));
  EXPECT_EQ(random.randint(3, 4), 3);
  EXPECT_EQ(random.permutation(17),
            (Ints{1, 3, 2, 5, 11, 0, 4, 6, 13, 15, 10, 14, 8, 16, 9, 12, 7}));
  EXPECT_EQ(random.random(), 0.9095935277196137);
  EXPECT_THROW(random.randint(4, 4), Error);
  EXPECT_EQ(random.permutation(0), Ints{});
  EXPECT_EQ(torch_randperm(1, 0), Ints{0});
  EXPECT_EQ(torch_randperm(0, 0), Ints{});
}

TEST(Splits, PublishedBoundaries) {
  using B = std::array<int64_t, 4>;
  EXPECT_EQ(split_boundaries("969, 30, 1", 1000), (B{0, 969, 999, 1000}));
  EXPECT_EQ(split_boundaries("949,50,1", 100), (B{0, 95, 100, 100}));
  EXPECT_EQ(split_boundaries("98,2,0", 10), (B{0, 10, 10, 10}));
  EXPECT_EQ(split_boundaries("80/10/10", 7), (B{0, 5, 6, 7}));
  EXPECT_EQ(split_boundaries("969,30,1", 17), (B{0, 16, 17, 17}));
  EXPECT_EQ(split_boundaries("8,1,1", 5), (B{0, 5, 5, 5}));
  EXPECT_EQ(split_boundaries("1", 5), (B{0, 5, 5, 5}));
  EXPECT_EQ(split_boundaries("1,0,0,7", 5), (B{0, 5, 5, 5}));
  EXPECT_EQ(split_boundaries("0.5,0.5", 5)[3], 5);
  EXPECT_EQ(split_boundaries("0,1,1", 3), (B{0, 0, 1, 3}));
  EXPECT_EQ(split_range("969,30,1", Split::kValid, 1000).begin, 969);
  EXPECT_EQ(split_range("98,2,0", Split::kTest, 10).size(), 0);
}

// tests/parity/gen_split_vectors.py
TEST(Splits, BothRoundingsOfMegatron) {
  const Json cases =
      parse_json(read_text_file(test_data() / "splits.json"), "cases", Code::kCorrupt);
  ASSERT_GT(cases.size(), 400u);
  using B = std::array<int64_t, 4>;
  int different = 0;
  for (const Json& one : cases) {
    const auto split = one[0].get<std::string>();
    const auto size = one[1].get<int64_t>();
    const auto older = split_boundaries(split, size, SplitRounding::kMegatron);
    const auto core = split_boundaries(split, size, SplitRounding::kMegatronCore);
    EXPECT_EQ(older, one[2].get<B>()) << split << " of " << size;
    EXPECT_EQ(core, one[3].get<B>()) << split << " of " << size;
    EXPECT_EQ(split_boundaries(split, size), older);
    different += older != core;
  }
  EXPECT_GT(different, 50);
  EXPECT_EQ(split_rounding("megatron_core"), SplitRounding::kMegatronCore);
  EXPECT_EQ(split_rounding("megatron"), SplitRounding::kMegatron);
  EXPECT_EQ(split_rounding("other"), std::nullopt);
}

TEST(Splits, Properties) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const std::string split = std::to_string(random() % 1000) + "," +
                              std::to_string(random() % 100) + "," +
                              std::to_string(1 + random() % 10);
    const int64_t size = random() % 5000;
    const auto bounds = split_boundaries(split, size);
    ASSERT_EQ(bounds[0], 0);
    ASSERT_EQ(bounds[3], size) << split;
    ASSERT_TRUE(std::is_sorted(bounds.begin(), bounds.end())) << split << " of " << size;
  }
}

TEST(Splits, Refused) {
  for (const char* split :
       {"", "a", "1,,2", "0,0,0", "-1,2", "nan", "inf,1", "1,2,x", "1;2", "1,2,"}) {
    expect_error(Code::kInvalidArgument, {"969,30,1"}, [&] { split_boundaries(split, 10); });
  }
}

const std::vector<int32_t> kSizes = {7, 3, 11, 5, 2, 9, 4, 6};

GptIndex golden_index(int64_t samples) {
  return build_gpt_index(kSizes, 0, {.sequence_length = 4, .seed = 1234, .samples = samples}, "t");
}

TEST(GptIndexTest, OneEpoch) {
  const GptIndex index = golden_index(10);
  EXPECT_EQ(index.epochs, 1);
  EXPECT_EQ(index.documents, (std::vector<int32_t>{2, 1, 6, 0, 4, 5, 3, 7}));
  EXPECT_EQ(index.start_positions, (Ints{0, 0, 0, 1, 2, 3, 3, 5, 5, 6, 6, 7}));
  EXPECT_EQ(index.start_offsets, (std::vector<int32_t>{0, 4, 8, 1, 2, 2, 6, 1, 5, 0, 4, 3}));
  EXPECT_EQ(index.order, (Ints{9, 3, 5, 10, 4, 8, 0, 2, 6, 7, 1}));
}

TEST(GptIndexTest, SeparateLastEpoch) {
  const GptIndex index = golden_index(15);
  EXPECT_EQ(index.epochs, 2);
  EXPECT_TRUE(index.separate_last_epoch);
  EXPECT_EQ(index.documents,
            (std::vector<int32_t>{2, 1, 6, 0, 4, 5, 3, 7, 5, 0, 3, 4, 2, 6, 1, 7}));
  EXPECT_EQ(index.order, (Ints{3,  9,  2,  1,  7,  5,  4,  0,  8,  6,  10, 15,
                               18, 12, 21, 20, 14, 19, 17, 22, 16, 11, 13}));
}

TEST(GptIndexTest, JointEpochs) {
  const GptIndex index = golden_index(22);
  EXPECT_EQ(index.epochs, 2);
  EXPECT_FALSE(index.separate_last_epoch);
  EXPECT_EQ(index.documents,
            (std::vector<int32_t>{5, 3, 0, 4, 6, 2, 2, 7, 1, 1, 0, 4, 5, 6, 3, 7}));
  EXPECT_EQ(index.order, (Ints{4, 13, 14, 17, 8,  1,  0, 18, 7, 3,  10, 6,
                               2, 20, 12, 11, 19, 15, 9, 21, 5, 16, 22}));
}

TEST(GptIndexTest, Epochs) {
  EXPECT_EQ(golden_index(0).epochs, 1);
  EXPECT_EQ(golden_index(11).epochs, 1);
  EXPECT_EQ(golden_index(12).epochs, 2);
  const GptIndex one = build_gpt_index(kSizes, 0, {.sequence_length = 4}, "t");
  EXPECT_EQ(one.epochs, 1);
  EXPECT_EQ(one.sample_count(), 11);
  const GptIndex three = build_gpt_index(kSizes, 0, {.sequence_length = 4, .epochs = 3}, "t");
  EXPECT_EQ(three.sample_count(), (47 * 3 - 1) / 4);
  EXPECT_FALSE(three.separate_last_epoch);
}

TEST(GptIndexTest, Refused) {
  const auto refuse = [](std::vector<int32_t> sizes, const GptIndexOptions& options,
                         std::initializer_list<std::string_view> parts) {
    expect_error(Code::kInvalidArgument, parts,
                 [&] { build_gpt_index(sizes, 0, options, "my data"); });
  };
  refuse({2, 2}, {.sequence_length = 4}, {"my data", "4 tokens", "needs 5"});
  refuse({}, {.sequence_length = 4}, {"0 tokens"});
  refuse({9}, {.sequence_length = 0}, {"sequence length is 0"});
  refuse({9}, {.sequence_length = -3}, {"-3"});
  refuse({9}, {.sequence_length = 4, .samples = -1}, {"-1"});
  refuse({9}, {.sequence_length = 4, .samples = INT64_MAX}, {"too many"});
  refuse({9}, {.sequence_length = 4, .epochs = 0}, {"epochs"});
  refuse({9}, {.sequence_length = 4, .epochs = INT64_MAX}, {"too many"});
  refuse({9}, {.sequence_length = 4, .samples = 100, .epochs = 2}, {"2 epochs", "100"});
  refuse({-1, 9}, {.sequence_length = 4}, {"-1"});
}

TokenSourcePtr counting_source(const std::vector<int32_t>& sizes) {
  std::vector<int32_t> tokens;
  std::vector<int64_t> ends;
  for (size_t s = 0; s < sizes.size(); ++s) {
    for (int32_t i = 0; i < sizes[s]; ++i) tokens.push_back(static_cast<int32_t>(s) * 1000 + i);
    ends.push_back(static_cast<int64_t>(tokens.size()));
  }
  return std::make_shared<MemoryTokens>(std::move(tokens), std::move(ends), "counting");
}

// Sample k of the unshuffled order is tokens [k L, k L + L] of the documents laid end to end.
TEST(GptDatasetTest, SamplesAreWindowsOfTheStream) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    std::vector<int32_t> sizes(1 + random() % 30);
    for (int32_t& size : sizes) size = static_cast<int32_t>(random() % 4 == 0 ? 0 : random() % 40);
    sizes[random() % sizes.size()] += 20;
    const auto source = counting_source(sizes);
    const auto count = static_cast<int64_t>(sizes.size());
    SequenceRange range{0, count};
    const auto length = static_cast<int64_t>(1 + random() % 15);
    const GptIndexOptions options{.sequence_length = length,
                                  .seed = static_cast<uint32_t>(random()),
                                  .samples = static_cast<int64_t>(random() % 200)};
    const GptDataset data(source, range, options, "train");
    ASSERT_GE(data.sample_count(), *options.samples);
    const GptIndex& index = data.index();
    std::vector<int32_t> stream;
    for (const int32_t document : index.documents) {
      for (int32_t i = 0; i < sizes[static_cast<size_t>(document)]; ++i) {
        stream.push_back(document * 1000 + i);
      }
    }
    // Every epoch holds every document; the shuffles are permutations.
    for (int64_t d = 0; d < count; ++d) {
      ASSERT_EQ(std::count(index.documents.begin(), index.documents.end(), d), index.epochs);
    }
    Ints sorted = index.order;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], static_cast<int64_t>(i));

    std::vector<int32_t> sample(static_cast<size_t>(length) + 1);
    Ints wide(sample.size());
    for (int64_t i = 0; i < data.sample_count(); ++i) {
      data.sample(i, std::span(sample));
      const auto begin = stream.begin() + index.order[static_cast<size_t>(i)] * length;
      ASSERT_TRUE(std::equal(sample.begin(), sample.end(), begin)) << "sample " << i;
      data.sample(i, std::span(wide));
      ASSERT_TRUE(std::equal(sample.begin(), sample.end(), wide.begin()));
    }
  }
}

TEST(GptDatasetTest, SplitsAndErrors) {
  const auto source = counting_source(std::vector<int32_t>(100, 10));
  const GptIndexOptions options{.sequence_length = 7};
  std::set<int32_t> seen;
  for (const Split part : {Split::kTrain, Split::kValid, Split::kTest}) {
    const auto data = make_gpt_dataset(source, "90,5,5", part, options);
    ASSERT_NE(data, nullptr);
    std::vector<int32_t> sample(8);
    std::set<int32_t> mine;
    for (int64_t i = 0; i < data->sample_count(); ++i) {
      data->sample(i, std::span(sample));
      for (const int32_t token : sample) mine.insert(token / 1000);
    }
    for (const int32_t sequence : mine) EXPECT_TRUE(seen.insert(sequence).second);
    expect_error(Code::kInvalidArgument, {split_name(part), "does not exist"},
                 [&] { data->sample(data->sample_count(), std::span(sample)); });
    EXPECT_THROW(data->sample(-1, std::span(sample)), Error);
    EXPECT_THROW(data->sample(0, std::span(sample).first(7)), Error);
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(make_gpt_dataset(source, "1,0,0", Split::kTest, options), nullptr);
  expect_error(Code::kInvalidArgument, {"counting", "valid", "10 tokens", "needs 16"},
               [&] { make_gpt_dataset(source, "99,1,0", Split::kValid, {.sequence_length = 15}); });
  EXPECT_THROW(make_gpt_dataset(nullptr, "1", Split::kTrain, options), Error);
  EXPECT_THROW(GptDataset(source, {0, 101}, options, "t"), Error);
}

TEST(TokenSources, RunningTextCanBeSplit) {
  std::vector<int32_t> tokens(200'000);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto source = cut_running_tokens(tokens, 64, "text");
  EXPECT_EQ(tokens_of(*source), 200'000);
  for (const Split part : {Split::kTrain, Split::kValid, Split::kTest}) {
    EXPECT_NE(make_gpt_dataset(source, "969,30,1", part, {.sequence_length = 64}), nullptr);
  }
  std::vector<int32_t> all;
  for (int64_t i = 0; i < source->sequence_count(); ++i) {
    std::vector<int32_t> part(static_cast<size_t>(source->sequence_size(i)));
    source->read(i, 0, part);
    all.insert(all.end(), part.begin(), part.end());
  }
  EXPECT_EQ(all, tokens);
  EXPECT_EQ(cut_running_tokens({}, 64, "none")->sequence_count(), 0);
  EXPECT_EQ(cut_running_tokens({1}, 64, "one")->sequence_count(), 1);
  EXPECT_THROW(cut_running_tokens({1}, 0, "bad"), Error);
  EXPECT_THROW(MemoryTokens({1, 2}, {1}, "bad"), Error);
  EXPECT_THROW(MemoryTokens({1, 2}, {2, 1, 2}, "bad"), Error);
  EXPECT_THROW(MemoryTokens({1, 2}, {3}, "bad"), Error);
}

// `batches` micro batches of a rank from `consumed` samples on, or until there are no more.
std::vector<Ints> take(const SamplerOptions& options, int64_t consumed, int batches) {
  Sampler sampler(options);
  const int64_t all = options.micro_batch * options.ranks;
  std::vector<Ints> out;
  Ints batch(static_cast<size_t>(options.micro_batch));
  for (; static_cast<int>(out.size()) < batches && sampler.has_left(consumed, all);
       consumed += all) {
    sampler.take(consumed, batch);
    out.push_back(batch);
  }
  return out;
}

TEST(SamplerTest, SingleGoesThroughOnce) {
  SamplerOptions options{SamplerKind::kSingle, 11, 2, 0, 2};
  EXPECT_EQ(take(options, 0, 100), (std::vector<Ints>{{0, 1}, {4, 5}}));
  options.rank = 1;
  EXPECT_EQ(take(options, 4, 100), (std::vector<Ints>{{6, 7}}));
  EXPECT_EQ(take(options, 8, 100), (std::vector<Ints>{}));
}

// torch.randperm(4, seed 0) = 2,0,1,3 and so on: see the published check of torch_randperm.
TEST(SamplerTest, CyclicIsTheRanksOwnPermutation) {
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (int64_t rank = 0; rank < 2; ++rank) {
      // 11 samples, batches of 4: 8 per epoch, each rank 4 of its own.
      const SamplerOptions options{SamplerKind::kCyclic, 11, 2, rank, 2};
      EXPECT_EQ(Sampler(options).epoch(epoch * 8 + 4), epoch);
      const Ints order = torch_randperm(4, static_cast<uint32_t>(epoch));
      const Ints next = torch_randperm(4, static_cast<uint32_t>(epoch + 1));
      EXPECT_EQ(take(options, epoch * 8 + 4, 2),
                (std::vector<Ints>{{order[2] + rank * 4, order[3] + rank * 4},
                                   {next[0] + rank * 4, next[1] + rank * 4}}));
    }
  }
}

TEST(SamplerTest, CyclicWithoutSharding) {
  const Ints order = torch_randperm(10, 0);  // 11 samples, whole micro batches
  for (int64_t rank = 0; rank < 2; ++rank) {
    SamplerOptions options{SamplerKind::kCyclic, 11, 2, rank, 2};
    options.shard = false;
    const auto r = static_cast<size_t>(rank);
    EXPECT_EQ(take(options, 4, 1), (std::vector<Ints>{{order[4 + r], order[6 + r]}}));
    EXPECT_EQ(Sampler(options).epoch(8), 1);
  }
}

// After k batches a sampler that was made anew yields batch k + 1.
TEST(SamplerTest, ResumesAnywhere) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    SamplerOptions options;
    options.kind = static_cast<SamplerKind>(random() % 3);
    options.drop_last = random() % 2 == 0;
    options.shard = random() % 2 == 0;
    options.micro_batch = 1 + random() % 4;
    options.ranks = 1 + random() % 3;
    options.rank = random() % options.ranks;
    options.total_samples = options.micro_batch * options.ranks * (2 + random() % 5) + random() % 5;
    const auto expected = take(options, 0, 20);
    const int stop = static_cast<int>(random() % expected.size());
    auto got = take(options, 0, stop);
    const int64_t consumed = stop * options.micro_batch * options.ranks;
    for (const Ints& batch : take(options, consumed, 20 - stop)) got.push_back(batch);
    ASSERT_EQ(got, expected);
  }
}

// All ranks together take every sample that an epoch uses exactly once.
TEST(SamplerTest, RanksShareAnEpoch) {
  for (const SamplerKind kind : {SamplerKind::kPasses, SamplerKind::kCyclic}) {
    for (const bool shard : {true, false}) {
      std::multiset<int64_t> seen;
      for (int64_t rank = 0; rank < 3; ++rank) {
        const SamplerOptions options{kind, 50, 4, rank, 3, true, shard};
        EXPECT_EQ(Sampler(options).epoch(95), 1);
        for (const Ints& batch : take(options, 48, 4)) seen.insert(batch.begin(), batch.end());
      }
      EXPECT_EQ(seen.size(), 48u);
      EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 48u);
      EXPECT_GE(*seen.begin(), 0);
      EXPECT_LT(*seen.rbegin(), 50);
    }
  }
}

TEST(SamplerTest, Refused) {
  const auto refuse = [](const SamplerOptions& options, std::string_view part) {
    expect_error(Code::kInvalidArgument, {part}, [&] { Sampler sampler(options); });
  };
  using enum SamplerKind;
  refuse({kSingle, 0}, "0 samples");
  refuse({kSingle, 5, 0}, "micro batch is 0");
  refuse({kSingle, 5, 1, 2, 2}, "rank 2 of 2");
  refuse({kSingle, 5, INT64_MAX, 0, 2}, "too large");
  refuse({kCyclic, 5, 6}, "dataloader_type \"cyclic\"");
  refuse({kPasses, 5, 6, 0, 1, true}, "dataloader_drop_last");
  Ints pair(2), wrong(3);
  Sampler cyclic({kCyclic, 8, 2});
  expect_error(Code::kInvalidArgument, {"do not end on a batch"}, [&] { cyclic.take(3, pair); });
  expect_error(Code::kInvalidArgument, {"-1 consumed"}, [&] { cyclic.take(-1, pair); });
  EXPECT_THROW(cyclic.take(0, wrong), Error);
  Sampler single({kSingle, 5, 2});
  expect_error(Code::kState, {"4 of the data set's 5"}, [&] { single.take(4, pair); });
}

}  // namespace
}  // namespace ds
