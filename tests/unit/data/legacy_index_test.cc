// Indexes of the layout before the memory-mapped one (TNTIDX), written here from its description,
// and merges of data sets of both layouts.
#include <cstring>
#include <optional>

#include "data/indexed_dataset.h"
#include "fresh_seed.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

using Longs = std::vector<int64_t>;

// Magic, then as 64-bit numbers: version, data type, bytes per item, sequences, sizes, document
// boundaries; first dimension of each sequence, first item of each, the sizes, the boundaries.
std::string legacy_index(int64_t code, int64_t item, const Longs& sizes, const Longs& documents) {
  const auto count = static_cast<int64_t>(sizes.size());
  Longs numbers = {1, code, item, count, count, static_cast<int64_t>(documents.size())};
  for (int64_t i = 0; i <= count; ++i) numbers.push_back(i);
  int64_t begin = 0;
  numbers.push_back(0);
  for (const int64_t size : sizes) numbers.push_back(begin += size);
  numbers.insert(numbers.end(), sizes.begin(), sizes.end());
  numbers.insert(numbers.end(), documents.begin(), documents.end());
  std::string out("TNTIDX\0\0", 8);
  out.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * 8);
  return out;
}

struct Content {
  std::vector<std::vector<int64_t>> sequences;
  Longs documents = {0};
};

Content random_content(std::mt19937& random) {
  Content out;
  const int64_t documents = random() % 5;
  for (int64_t d = 0; d < documents; ++d) {
    for (size_t s = random() % 4; s > 0; --s) {
      std::vector<int64_t>& tokens = out.sequences.emplace_back(random() % 6);
      for (int64_t& token : tokens) token = static_cast<int64_t>(random() % 30000);
    }
    out.documents.push_back(static_cast<int64_t>(out.sequences.size()));
  }
  return out;
}

template <class Stored>
void write_legacy(const std::filesystem::path& prefix, int64_t code, const Content& content) {
  Longs sizes;
  std::string bin;
  for (const auto& sequence : content.sequences) {
    sizes.push_back(static_cast<int64_t>(sequence.size()));
    for (const int64_t token : sequence) {
      const auto stored = static_cast<Stored>(token);
      bin.append(reinterpret_cast<const char*>(&stored), sizeof stored);
    }
  }
  write_bytes(prefix.string() + ".idx",
              legacy_index(code, sizeof(Stored), sizes, content.documents));
  write_bytes(prefix.string() + ".bin", bin);
}

void write_mapped(const std::filesystem::path& prefix, TokenType type, const Content& content) {
  IndexedDatasetWriter writer(prefix, type);
  for (size_t d = 0; d + 1 < content.documents.size(); ++d) {
    for (int64_t s = content.documents[d]; s < content.documents[d + 1]; ++s) {
      writer.add_sequence(std::span<const int64_t>(content.sequences[static_cast<size_t>(s)]));
    }
    writer.end_document();
  }
  writer.finish();
}

void expect_content(const IndexedDataset& data, const Content& content) {
  ASSERT_EQ(data.sequence_count(), static_cast<int64_t>(content.sequences.size()));
  ASSERT_EQ(data.document_count() + 1, static_cast<int64_t>(content.documents.size()));
  for (int64_t i = 0; i < data.sequence_count(); ++i) {
    EXPECT_EQ(data.read(i), content.sequences[static_cast<size_t>(i)]);
  }
  for (int64_t d = 0; d <= data.document_count(); ++d) {
    EXPECT_EQ(data.document_begin(d), content.documents[static_cast<size_t>(d)]);
  }
}

TEST(LegacyIndex, HoldsTheSameDocuments) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  const TempFolder folder;
  for (int round = 0; round < 30; ++round) {
    const Content content = random_content(random);
    write_legacy<int32_t>(folder / "i32", 4, content);
    write_legacy<uint16_t>(folder / "u16", 8, content);
    write_legacy<int64_t>(folder / "i64", 5, content);
    for (const auto& [name, type] :
         {std::pair("i32", TokenType::kI32), {"u16", TokenType::kU16}, {"i64", TokenType::kI64}}) {
      const IndexedDataset data(folder / name);
      EXPECT_EQ(data.type(), type);
      expect_content(data, content);
    }
  }
}

// A merge of one is a conversion: the bytes of the files are those that the writer gives.
TEST(LegacyIndex, AMergeIsTheConcatenationInTheNewLayout) {
  std::mt19937 random(5);
  const TempFolder folder;
  const Content first = random_content(random), second = random_content(random);
  write_legacy<int32_t>(folder / "first", 4, first);
  write_mapped(folder / "second", TokenType::kI32, second);
  Content both = first;
  for (size_t d = 1; d < second.documents.size(); ++d) {
    both.documents.push_back(static_cast<int64_t>(first.sequences.size()) + second.documents[d]);
  }
  both.sequences.insert(both.sequences.end(), second.sequences.begin(), second.sequences.end());
  ASSERT_GT(first.sequences.size() * second.sequences.size(), 0u);

  const std::filesystem::path inputs[] = {folder / "first", folder / "second"};
  IndexedDatasetWriter::merge(inputs, folder / "merged");
  expect_content(IndexedDataset(folder / "merged"), both);
  write_mapped(folder / "whole", TokenType::kI32, both);
  for (const char* const ending : {".bin", ".idx"}) {
    EXPECT_EQ(read_bytes(folder / (std::string("merged") + ending)),
              read_bytes(folder / (std::string("whole") + ending)));
  }
}

TEST(LegacyIndex, MergesThatCannotBe) {
  std::mt19937 random(5);
  const TempFolder folder;
  const Content content = random_content(random);
  write_legacy<int32_t>(folder / "a", 4, content);
  write_legacy<uint16_t>(folder / "b", 8, content);
  const auto refused = [&](std::vector<std::filesystem::path> inputs, const char* output, Code code,
                           std::string_view part) {
    expect_error(code, {part}, [&] { IndexedDatasetWriter::merge(inputs, folder / output); });
    EXPECT_EQ(std::string(output) != "a" && indexed_dataset_exists(folder / output), false);
  };
  refused({}, "out", Code::kInvalidArgument, "at least one");
  refused({folder / "a", folder / "b"}, "out", Code::kInvalidArgument, "u16");
  refused({folder / "a", folder / "none"}, "out", Code::kNotFound, "none.idx");
  refused({folder / "a"}, "a", Code::kInvalidArgument, "cannot be its output");
}

class DamagedLegacyIndex : public testing::Test {
 protected:
  void refuse(const std::string& idx, Code code, std::string_view part) {
    write_bytes(folder_ / "d.idx", idx);
    write_bytes(folder_ / "d.bin", bin_);
    expect_error(code, {part}, [&] { IndexedDataset(folder_ / "d"); });
  }
  // The 64-bit number at a place behind the magic.
  std::string with(size_t place, int64_t value) const {
    std::string out = idx_;
    std::memcpy(out.data() + 8 + 8 * place, &value, 8);
    return out;
  }

  TempFolder folder_;
  // Sequences of 3 and 2 tokens, each a document: numbers 0 to 5 are the header, 6 to 8 the
  // dimensions, 9 to 11 the items, 12 and 13 the sizes, 14 to 16 the documents.
  std::string idx_ = legacy_index(4, 4, {3, 2}, {0, 1, 2});
  std::string bin_ = std::string(20, '\1');
};

TEST_F(DamagedLegacyIndex, EveryNumber) {
  write_bytes(folder_ / "d.idx", idx_);
  write_bytes(folder_ / "d.bin", bin_);
  EXPECT_EQ(IndexedDataset(folder_ / "d").sequence_count(), 2);
  refuse(with(0, 2), Code::kUnsupported, "version 2");
  refuse(with(1, 0), Code::kCorrupt, "code 0");
  refuse(with(1, 6), Code::kUnsupported, "floating-point");
  refuse(with(2, 8), Code::kCorrupt, "items have 8 bytes");
  for (size_t count = 3; count <= 5; ++count) {
    for (const int64_t value : {int64_t{0}, int64_t{1}, INT64_MAX, int64_t{-1}}) {
      refuse(with(count, value), Code::kCorrupt, "d.idx");
    }
  }
  refuse(with(7, 2), Code::kCorrupt, "dimensions of sequence 1");
  refuse(with(9, 1), Code::kCorrupt, "sequence 0 begins at token 1");
  refuse(with(10, 6), Code::kCorrupt, "sequence 1 begins at token 6");
  refuse(with(10, -1), Code::kCorrupt, "sequence 1 begins at token -1");
  refuse(with(11, 4), Code::kCorrupt, "sequence 1 has the size 2");
  refuse(with(12, 2), Code::kCorrupt, "sequence 0 has the size 2");
  refuse(with(14, 1), Code::kCorrupt, "boundary 0");
  refuse(with(15, 3), Code::kCorrupt, "boundary 2");
  refuse(with(16, 1), Code::kCorrupt, "ends at sequence 1 of 2");
  bin_ += "....";
  refuse(idx_, Code::kCorrupt, "add up to 20");
}

TEST_F(DamagedLegacyIndex, TruncatedAnywhere) {
  for (size_t length = 0; length < idx_.size(); ++length) {
    refuse(idx_.substr(0, length), Code::kCorrupt, "d.idx");
  }
}

// Two sizes of one sequence: a tensor of two dimensions.
TEST_F(DamagedLegacyIndex, TensorsAreNoTokens) {
  Longs numbers = {1, 4, 4, 1, 2, 2, 0, 2, 0, 6, 2, 3, 0, 1};
  std::string idx("TNTIDX\0\0", 8);
  idx.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * 8);
  refuse(idx, Code::kUnsupported, "one dimension");
}

}  // namespace
}  // namespace ds
