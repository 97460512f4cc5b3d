// Reading many tensors at once: whatever the sizes, the alignment of the targets, the slices and
// the chunks, the bytes are those that were written; damage is found wherever it lies.
#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <numeric>

#include "base/thread_pool.h"
#include "fresh_seed.h"
#include "unit/checkpoint/support.h"

namespace ds::test {
namespace {

std::vector<std::byte> content(uint64_t item, size_t n) {
  std::mt19937_64 rng(ds::run_seed() * 1000 + item);
  std::vector<uint64_t> words(n / 8 + 1);
  for (uint64_t& word : words) word = rng();
  std::vector<std::byte> out(n);
  std::memcpy(out.data(), words.data(), n);
  return out;
}

// A checkpoint of int32 matrices, whole or in slices of rows or columns.
class ReadAll : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    std::mt19937_64 rng(ds::run_seed());
    CheckpointWriterOptions options;
    options.folder = folder_.path() / "save";
    options.tag = "t";
    options.blob.chunk_bytes = GetParam();
    CheckpointWriter writer(options);
    const std::array<int64_t, 7> rows = {3000, 3, 1500, 40, 2, 5000, 700};
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t columns = 250 + static_cast<int64_t>(rng() % 12);
      TensorMeta meta =
          make_meta("t" + std::to_string(i), TensorKind::kModel, DType::kInt32, {rows[i], columns});
      contents_.push_back(content(i, static_cast<size_t>(4 * rows[i] * columns)));
      const std::span<const std::byte> bytes(contents_.back());
      if (i % 3 == 0) {
        writer.part().add_tensor(meta, bytes);
      } else if (i % 3 == 1) {  // two runs of the flattened tensor
        const int64_t n = rows[i] * columns,
                      cut = static_cast<int64_t>(rng() % static_cast<uint64_t>(n));
        writer.part().add_range(meta, 0, cut, bytes.first(static_cast<size_t>(4 * cut)));
        writer.part().add_range(meta, cut, n, bytes.subspan(static_cast<size_t>(4 * cut)));
      } else {  // two halves by column
        for (const int64_t half : {0, 1}) {
          const int64_t from = half * 100, count = half == 0 ? 100 : columns - 100;
          std::vector<std::byte> part;
          for (int64_t row = 0; row < rows[i]; ++row) {
            const auto begin = bytes.begin() + 4 * (row * columns + from);
            part.insert(part.end(), begin, begin + 4 * count);
          }
          writer.part().add_tensor(meta, Box{{0, from}, {rows[i], count}}, part);
        }
      }
    }
    writer.commit();
  }

  fs::path blob() const { return folder_.path() / "save/t/data-00000.bin"; }

  // Reads some of the tensors into memory with random alignment, or piece by piece.
  void expect_all(const CheckpointReader& reader, std::mt19937_64& rng) const {
    std::vector<size_t> order(contents_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), rng);
    order.resize(1 + rng() % order.size());
    std::vector<io::Buffer> memory;
    std::vector<std::span<std::byte>> places;
    std::vector<TensorTarget> targets;
    std::vector<uint64_t> taken(order.size());
    for (size_t k = 0; k < order.size(); ++k) {
      const size_t n = contents_[order[k]].size();
      memory.emplace_back(static_cast<int64_t>(n) + 8192);
      const size_t shift = std::array<size_t, 4>{0, 4096, 512, 4 * (rng() % 999)}[rng() % 4];
      places.push_back(memory.back().bytes().subspan(shift, n));
      const TensorRecord& record =
          reader.tensor("t" + std::to_string(order[k]), TensorKind::kModel);
      targets.push_back({&record, {}, {}});
      if (rng() % 3 > 0) {
        targets.back().out = places.back();
        taken[k] = n;
        continue;
      }
      targets.back().sink = [place = places.back(), &count = taken[k]](
                                uint64_t at, std::span<const std::byte> bytes) {
        ASSERT_EQ(at % 4, 0u);
        ASSERT_EQ(bytes.size() % 4, 0u);
        std::copy(bytes.begin(), bytes.end(), place.begin() + static_cast<std::ptrdiff_t>(at));
        count += bytes.size();
      };
    }
    reader.check_all(targets);
    reader.read_all(targets);
    for (size_t k = 0; k < order.size(); ++k) {
      EXPECT_EQ(taken[k], contents_[order[k]].size());
      EXPECT_TRUE(std::equal(places[k].begin(), places[k].end(), contents_[order[k]].begin()))
          << "t" << order[k];
    }
  }

  TempFolder folder_;
  std::vector<std::vector<std::byte>> contents_;
};

TEST_P(ReadAll, GivesEveryByte) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed() + 1);
  ThreadPool pool(3);
  CheckpointReader reader = CheckpointReader::open(folder_.path() / "save");
  ASSERT_GT(reader.manifest().blobs.at(0).size, BulkRead::kLeastBytes);
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    reader.use_threads(round % 2 == 0 ? nullptr : &pool);
    expect_all(reader, rng);
  }
  EXPECT_TRUE(reader.verify_all().empty());
}

// Ranges of tensors are read and checked alone: damage elsewhere is nobody's, in them it is found.
TEST_P(ReadAll, RangesAreReadAndCheckedAlone) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed() + 3);
  const CheckpointReader whole = CheckpointReader::open(folder_.path() / "save");
  const uint64_t chunk = whole.manifest().blobs.at(0).chunk_bytes;
  for (const size_t item : {0, 1, 2, 3}) {  // whole, two runs, two halves by column, small
    SCOPED_TRACE(item);
    const std::vector<std::byte>& content = contents_[item];
    const auto elements = static_cast<int64_t>(content.size() / 4);
    const int64_t begin = elements / 3, end = begin + elements / 5 + 1;
    const auto expected = std::span(content).subspan(static_cast<size_t>(begin) * 4,
                                                     static_cast<size_t>(end - begin) * 4);
    const TensorRecord& record = whole.tensor("t" + std::to_string(item), TensorKind::kModel);
    std::vector<std::byte> out(expected.size()), pieces(expected.size());
    const PieceSink sink = [&](uint64_t at, std::span<const std::byte> bytes) {
      EXPECT_EQ(at % 4, 0u);
      std::copy(bytes.begin(), bytes.end(), pieces.begin() + static_cast<std::ptrdiff_t>(at));
    };
    const std::vector<TensorTarget> targets{{&record, out, {}, ElementRange{begin, end}},
                                            {&record, {}, sink, ElementRange{begin, end}}};
    whole.check_all(targets);
    whole.read_all(targets);
    EXPECT_TRUE(std::equal(out.begin(), out.end(), expected.begin()));
    EXPECT_TRUE(std::equal(pieces.begin(), pieces.end(), expected.begin()));
  }
  // Of the first tensor, which lies in one piece, everything but the range and its chunks goes bad.
  const TensorRecord& record = whole.tensor("t0", TensorKind::kModel);
  const uint64_t at = record.slices.at(0).range.offset;
  const auto elements = static_cast<int64_t>(contents_[0].size() / 4);
  const ElementRange range{elements / 2, elements / 2 + 100};
  const uint64_t first = (at + static_cast<uint64_t>(range.begin) * 4) / chunk * chunk;
  const uint64_t last = (at + static_cast<uint64_t>(range.end) * 4 + chunk - 1) / chunk * chunk;
  const auto flip = [&](uint64_t place) {
    std::ifstream file(blob(), std::ios::binary);
    file.seekg(static_cast<std::streamoff>(place));
    poke(blob(), place, static_cast<char>(file.get() ^ 1));
  };
  if (first > 0) flip(first - 1);
  flip(last);
  std::vector<std::byte> out(400);
  const std::vector<TensorTarget> target{{&record, out, {}, range}};
  const CheckpointReader reader = CheckpointReader::open(folder_.path() / "save");
  reader.check_all(target);
  reader.read_all(target);
  EXPECT_TRUE(std::equal(out.begin(), out.end(),
                         contents_[0].begin() + static_cast<std::ptrdiff_t>(range.begin) * 4));
  flip(last - 1);
  const CheckpointReader damaged = CheckpointReader::open(folder_.path() / "save");
  EXPECT_EQ(error_of([&] { damaged.check_all(target); }).code(), Code::kCorrupt);
  EXPECT_EQ(error_of([&] { damaged.read_all(target); }).code(), Code::kCorrupt);
}

// What follows it in the file is not checked in its place.
TEST_P(ReadAll, WhatIsAskedForTwiceIsCheckedAlone) {
  const CheckpointReader reader = CheckpointReader::open(folder_.path() / "save");
  const TensorRecord& record = reader.tensor("t0", TensorKind::kModel);
  const auto chunk = static_cast<uint64_t>(GetParam());
  const BlobRange& range = record.slices.at(0).range;
  const uint64_t next = (range.offset + range.length + chunk - 1) / chunk * chunk;
  poke(blob(), next, static_cast<char>(slurp(blob())[next] ^ 1));
  std::vector<std::byte> out(contents_[0].size());
  reader.check_all(std::vector<TensorTarget>{{&record, out, {}}, {&record, out, {}}});
  ASSERT_EQ(reader.verify_all().size(), 1u);
}

TEST_P(ReadAll, FindsDamageWhereverItLies) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed() + 2);
  ThreadPool pool(2);
  CheckpointReader reader = CheckpointReader::open(folder_.path() / "save");
  reader.use_threads(&pool);
  const TensorRecord& record = reader.tensor("t5", TensorKind::kModel);
  std::vector<std::byte> out(contents_[5].size());
  const std::vector<TensorTarget> target{{&record, out, {}}};
  const auto chunk = static_cast<uint64_t>(GetParam());
  for (const double place : {0.0, 0.3, 0.6, 1.0}) {
    // Slices lie one behind the other.
    const uint64_t first = record.slices.front().range.offset;
    const uint64_t last = record.slices.back().range.offset + record.slices.back().range.length - 1;
    const auto at = first + static_cast<uint64_t>(place * static_cast<double>(last - first));
    std::string good(1, '\0');
    {
      std::ifstream in(blob(), std::ios::binary);
      in.seekg(static_cast<std::streamoff>(at));
      in.get(good[0]);
    }
    poke(blob(), at, static_cast<char>(good[0] ^ 4));
    const std::string name = "chunk " + std::to_string(at / chunk) + " of ";
    for (const bool only_check : {true, false}) {
      const Error error =
          error_of([&] { only_check ? reader.check_all(target) : reader.read_all(target); });
      EXPECT_EQ(error.code(), Code::kCorrupt);
      EXPECT_NE(error.message().find(name), std::string::npos) << error.message();
      EXPECT_NE(error.message().find("'t5'"), std::string::npos) << error.message();
    }
    const std::vector<Damage> damage = reader.verify_all();
    ASSERT_EQ(damage.size(), 1u);
    EXPECT_EQ(damage[0].begin, at / chunk * chunk);
    poke(blob(), at, good[0]);
    reader.read_all(target);
    EXPECT_TRUE(out == contents_[5]);
  }
  // Tensors that lie elsewhere do not see it.
  poke(blob(), fs::file_size(blob()) - 1, 'x');
  std::vector<std::byte> first(contents_[0].size());
  reader.read_all(std::vector<TensorTarget>{{&reader.tensor("t0", TensorKind::kModel), first, {}}});
  EXPECT_TRUE(first == contents_[0]);
  // Cut short behind the reader's back.
  fs::resize_file(blob(), 5'000'000);
  const Error error = error_of([&] { reader.read_all(target); });
  EXPECT_EQ(error.code(), Code::kCorrupt);
  EXPECT_NE(error.message().find("truncated"), std::string::npos) << error.message();
}

// Whoever repairs a file begins with what is named, and what was read before it is whole.
TEST_P(ReadAll, OfManyDamagedChunksTheFirstIsNamed) {
  const CheckpointReader reader = CheckpointReader::open(folder_.path() / "save");
  const TensorRecord& record = reader.tensor("t5", TensorKind::kModel);
  const uint64_t first = record.slices.front().range.offset;
  const auto chunk = static_cast<uint64_t>(GetParam());
  const std::string content = slurp(blob());
  for (uint64_t at = first; at < fs::file_size(blob()); at += std::max(chunk, uint64_t{1} << 20)) {
    poke(blob(), at, static_cast<char>(content[at] ^ 4));
  }
  std::vector<std::byte> out(contents_[5].size());
  const std::vector<TensorTarget> target{{&record, out, {}}};
  for (const bool only_check : {true, false}) {
    const Error error =
        error_of([&] { only_check ? reader.check_all(target) : reader.read_all(target); });
    EXPECT_EQ(error.code(), Code::kCorrupt);
    EXPECT_NE(error.message().find("chunk " + std::to_string(first / chunk) + " of "),
              std::string::npos)
        << error.message();
  }
}

TEST_P(ReadAll, RefusesTargetsOfAnotherSize) {
  const CheckpointReader reader = CheckpointReader::open(folder_.path() / "save");
  std::vector<std::byte> out(contents_[0].size() - 1);
  const Error error = error_of([&] {
    reader.read_all(std::vector<TensorTarget>{{&reader.tensor("t0", TensorKind::kModel), out, {}}});
  });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
}

TEST_P(ReadAll, OneTensorMayBeAskedForManyTimes) {
  const CheckpointReader reader = CheckpointReader::open(folder_.path() / "save");
  const TensorRecord& record = reader.tensor("t1", TensorKind::kModel);
  std::vector<std::vector<std::byte>> places(40, std::vector<std::byte>(contents_[1].size()));
  std::vector<TensorTarget> targets;
  for (std::vector<std::byte>& place : places) targets.push_back({&record, place, {}});
  reader.check_all(targets);
  reader.read_all(targets);
  for (const std::vector<std::byte>& place : places) EXPECT_TRUE(place == contents_[1]);
}

// A whole tensor beside small parts of it, which end before it does.
TEST_P(ReadAll, PartsMayLieWithinOthers) {
  const CheckpointReader reader = CheckpointReader::open(folder_.path() / "save");
  const TensorRecord& record = reader.tensor("t0", TensorKind::kModel);
  const std::vector<std::byte>& expected = contents_[0];
  std::vector<std::byte> whole(expected.size());
  std::vector<std::vector<std::byte>> parts(10, std::vector<std::byte>(20));
  std::vector<TensorTarget> targets{{&record, whole, {}}};
  const auto begin_of = [](size_t part) { return static_cast<int64_t>(1000 * part + 3); };
  for (size_t i = 0; i < parts.size(); ++i) {
    targets.push_back({&record, parts[i], {}, ElementRange{begin_of(i), begin_of(i) + 5}});
  }
  reader.read_all(targets);
  EXPECT_TRUE(whole == expected);
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_TRUE(std::equal(parts[i].begin(), parts[i].end(), expected.begin() + 4 * begin_of(i)));
  }
}

INSTANTIATE_TEST_SUITE_P(Chunks, ReadAll,
                         ::testing::Values(int64_t{1} << 20, int64_t{4096}, int64_t{100'000},
                                           int64_t{65'537}, int64_t{3} << 20),
                         [](const auto& chunk) { return std::to_string(chunk.param); });

}  // namespace
}  // namespace ds::test
