// Indexed data sets: the golden bytes, round trips of every type, and damage of every kind.
#include "data/indexed_dataset.h"

#include <cstring>
#include <map>

#include "data/gpt_dataset.h"
#include "fresh_seed.h"
#include "test_paths.h"
#include "unit/data/data_test_util.h"

namespace ds {
namespace {

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    out += text;
  }
  return out;
}

void write_golden(const std::filesystem::path& prefix) {
  IndexedDatasetWriter writer(prefix, token_type_for_vocab(50257));
  writer.add_sequence(std::vector<int32_t>{1, 2, 3});
  writer.end_document();
  writer.add_sequence(std::vector<int64_t>{4, 5});
  writer.end_document();
  writer.finish();
}

template <class T>
void put(std::string& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

TEST(IndexedDatasetTest, GoldenBytes) {
  const TempFolder folder;
  write_golden(folder / "g");
  EXPECT_EQ(hex(read_bytes(folder / "g.bin")), "01000200030004000500");
  EXPECT_EQ(hex(read_bytes(folder / "g.idx")),
            "4d4d494449445800000100000000000000080200000000000000"
            "0300000000000000"
            "0300000002000000"
            "00000000000000000600000000000000"
            "000000000000000001000000000000000200000000000000");
  // The committed pair is the same, so the format cannot drift.
  const auto committed = test_data() / "indexed" / "two_documents";
  EXPECT_EQ(read_bytes(bin_path(committed)), read_bytes(folder / "g.bin"));
  EXPECT_EQ(read_bytes(idx_path(committed)), read_bytes(folder / "g.idx"));
}

TEST(IndexedDatasetTest, Reads) {
  const TempFolder folder;
  write_golden(folder / "g");
  const IndexedDataset data(folder / "g");
  EXPECT_EQ(data.type(), TokenType::kU16);
  EXPECT_EQ(data.sequence_count(), 2);
  EXPECT_EQ(data.document_count(), 2);
  EXPECT_EQ(data.document_begin(1), 1);
  EXPECT_EQ(data.document_begin(2), 2);
  EXPECT_EQ(tokens_of(data), 5);
  EXPECT_EQ(data.read(0), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(data.read(1), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(data.mode(0), std::nullopt);
  std::vector<int32_t> part(2);
  data.read(0, 1, std::span(part));
  EXPECT_EQ(part, (std::vector<int32_t>{2, 3}));
  data.read(0, 3, std::span<int32_t>());
  expect_error(Code::kInvalidArgument, {"3 tokens", "from 2"},
               [&] { data.read(0, 2, std::span(part)); });
  EXPECT_THROW(data.read(0, -1, std::span(part)), Error);
  EXPECT_THROW(data.read(0, INT64_MAX, std::span(part)), Error);
  EXPECT_THROW(data.read(2), Error);
  EXPECT_THROW(data.read(-1), Error);
  EXPECT_THROW(data.document_begin(3), Error);
}

TEST(IndexedDatasetTest, EveryTypeAndAnySize) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(seed_text(seed));
  std::mt19937 random(seed);
  const std::map<TokenType, std::pair<int64_t, int64_t>> ranges = {
      {TokenType::kU8, {0, 255}},
      {TokenType::kI8, {-128, 127}},
      {TokenType::kI16, {-32768, 32767}},
      {TokenType::kU16, {0, 65535}},
      {TokenType::kI32, {INT32_MIN, INT32_MAX}},
      {TokenType::kI64, {INT64_MIN, INT64_MAX}}};
  const TempFolder folder;
  for (const auto& [type, range] : ranges) {
    SCOPED_TRACE(token_type_name(type));
    std::uniform_int_distribution<int64_t> any(range.first, range.second);
    std::vector<std::vector<int64_t>> sequences;
    std::vector<int64_t> boundaries = {0};
    IndexedDatasetWriter writer(folder / "d", type);
    for (int document = 0; document < 20; ++document) {
      for (uint32_t n = random() % 4; n > 0; --n) {  // documents may be empty
        auto& tokens = sequences.emplace_back(random() % 3 == 0 ? 0 : random() % 1000);
        for (int64_t& token : tokens) token = any(random);
        writer.add_sequence(std::span<const int64_t>(tokens));
      }
      writer.end_document();
      boundaries.push_back(static_cast<int64_t>(sequences.size()));
    }
    // A token that does not fit leaves the data set as it was.
    if (type != TokenType::kI64) {
      EXPECT_THROW(writer.add_sequence(std::vector<int64_t>{0, range.second + 1}), Error);
      EXPECT_THROW(writer.add_sequence(std::vector<int64_t>{0, range.first - 1}), Error);
    }
    writer.finish();
    const IndexedDataset data(folder / "d");
    ASSERT_EQ(data.sequence_count(), static_cast<int64_t>(sequences.size()));
    for (size_t i = 0; i < sequences.size(); ++i) {
      ASSERT_EQ(data.read(static_cast<int64_t>(i)), sequences[i]);
    }
    for (size_t d = 0; d < boundaries.size(); ++d) {
      EXPECT_EQ(data.document_begin(static_cast<int64_t>(d)), boundaries[d]);
    }
    // 32-bit reads refuse what they cannot hold.
    if (type == TokenType::kI64) {
      IndexedDatasetWriter big(folder / "big", type);
      big.add_sequence(std::vector<int64_t>{1, int64_t{1} << 40});
      big.end_document();
      big.finish();
      std::vector<int32_t> narrow(2);
      const IndexedDataset wide(folder / "big");
      expect_error(Code::kCorrupt, {"1099511627776"}, [&] { wide.read(0, 0, std::span(narrow)); });
    }
  }
}

TEST(IndexedDatasetTest, WriterRules) {
  EXPECT_EQ(token_type_for_vocab(65499), TokenType::kU16);
  EXPECT_EQ(token_type_for_vocab(65500), TokenType::kI32);
  EXPECT_EQ(token_type_for_vocab(0), TokenType::kI32);
  const TempFolder folder;
  {
    IndexedDatasetWriter writer(folder / "x", TokenType::kI32);
    writer.add_sequence(std::vector<int32_t>{1});
    expect_error(Code::kState, {"not ended"}, [&] { writer.finish(); });
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));  // abandoned: nothing stays
  EXPECT_THROW(IndexedDatasetWriter(folder / "x", TokenType::kF32), Error);
  EXPECT_THROW(IndexedDatasetWriter(folder / "no/such/folder", TokenType::kI32), Error);

  IndexedDatasetWriter empty(folder / "e", TokenType::kI32);
  empty.finish();
  EXPECT_THROW(empty.finish(), Error);
  EXPECT_THROW(empty.end_document(), Error);
  EXPECT_THROW(empty.add_sequence(std::vector<int32_t>{1}), Error);
  const IndexedDataset data(folder / "e");
  EXPECT_EQ(data.sequence_count(), 0);
  EXPECT_EQ(data.document_count(), 0);
}

TEST(IndexedDatasetTest, Merging) {
  const TempFolder folder;
  write_golden(folder / "a");
  IndexedDatasetWriter writer(folder / "m", TokenType::kU16);
  const IndexedDataset part(folder / "a");
  writer.add_dataset(part);
  writer.add_sequence(std::vector<int32_t>{9});
  writer.end_document();
  writer.add_dataset(part);
  writer.finish();
  const IndexedDataset merged(folder / "m");
  EXPECT_EQ(merged.sequence_count(), 5);
  EXPECT_EQ(merged.document_count(), 5);
  EXPECT_EQ(merged.read(2), std::vector<int64_t>{9});
  EXPECT_EQ(merged.read(4), (std::vector<int64_t>{4, 5}));
  IndexedDatasetWriter other(folder / "o", TokenType::kI32);
  expect_error(Code::kInvalidArgument, {"u16", "i32"}, [&] { other.add_dataset(part); });
}

TEST(IndexedDatasetTest, ModesOfNewerFiles) {
  const TempFolder folder;
  write_golden(folder / "g");
  write_bytes(folder / "g.idx", read_bytes(folder / "g.idx") + std::string("\x00\x01", 2));
  const IndexedDataset data(folder / "g");
  EXPECT_EQ(data.mode(0), 0);
  EXPECT_EQ(data.mode(1), 1);
  EXPECT_EQ(data.read(1), (std::vector<int64_t>{4, 5}));
}

TEST(IndexedDatasetTest, FilesThatChangeWhileTheyAreRead) {
  const TempFolder folder;
  {
    IndexedDatasetWriter writer(folder / "d", TokenType::kI32);
    for (int d = 0; d < 3; ++d) {
      writer.add_sequence(std::vector<int32_t>(20000, d));
      writer.end_document();
    }
    writer.finish();
  }
  const IndexedDataset data(folder / "d");
  // The index is in memory: what happens to its file does not matter.
  std::filesystem::resize_file(folder / "d.idx", 0);
  EXPECT_EQ(data.read(2), std::vector<int64_t>(20000, 2));
  std::filesystem::resize_file(folder / "d.bin", 100000);
  EXPECT_EQ(data.read(0), std::vector<int64_t>(20000, 0));
  std::vector<int32_t> tokens(10000);
  data.read(1, 0, std::span(tokens).first(5000));  // up to byte 100000
  EXPECT_EQ(tokens[4999], 1);
  expect_error(Code::kCorrupt, {"d.bin", "has 100000 bytes", "at 100000"},
               [&] { data.read(1, 5000, std::span(tokens).first(1)); });
  expect_error(Code::kCorrupt, {"d.bin", "has 100000 bytes", "truncated"}, [&] { data.read(2); });
  expect_error(Code::kCorrupt, {"d.bin", "has 100000 bytes"}, [&] { data.bytes(2); });
}

TEST(IndexedDatasetTest, TokensBeyondAVocabularyAreNamedWithTheirPlace) {
  const TempFolder folder;
  write_golden(folder / "g");
  const IndexedDataset data(folder / "g");
  EXPECT_NO_THROW(data.check_tokens(0, 2, 6));
  EXPECT_NO_THROW(data.check_tokens(0, 1, 4));
  expect_error(
      Code::kInvalidArgument,
      {"g.bin: byte 8 (token 1 of sequence 1, document 1)", "token id 5", "vocabulary of 5"},
      [&] { data.check_tokens(0, 2, 5); });
  expect_error(Code::kInvalidArgument, {"byte 4 (token 2 of sequence 0, document 0)"},
               [&] { data.check_tokens(0, 2, 3); });
}

TEST(IndexedDatasetTest, SamplesKnowWhereTheirTokensLie) {
  const TempFolder folder;
  {
    IndexedDatasetWriter writer(folder / "d", TokenType::kI32);
    int32_t next = 0;  // each token is its own number
    for (const int size : {3, 1, 40, 0, 7, 25}) {
      std::vector<int32_t> tokens(static_cast<size_t>(size));
      for (int32_t& token : tokens) token = next++;
      writer.add_sequence(std::span<const int32_t>(tokens));
      writer.end_document();
    }
    writer.finish();
  }
  const GptDataset data(std::make_shared<IndexedDataset>(folder / "d"), {0, 6},
                        {.sequence_length = 7, .seed = 3, .samples = 40}, "train");
  ASSERT_GE(data.sample_count(), 40);
  std::vector<int32_t> tokens(8);
  for (int64_t i = 0; i < data.sample_count(); ++i) {
    data.sample(i, std::span(tokens));
    for (int64_t p = 0; p < 8; ++p) {
      const std::string byte = str_cat(": byte ", 4 * tokens[static_cast<size_t>(p)], " (");
      EXPECT_NE(data.place(i, p).find(byte), std::string::npos) << data.place(i, p) << byte;
    }
  }
  EXPECT_FALSE(data.check_tokens(76, 75));  // too many to read
  EXPECT_TRUE(data.check_tokens(76, 76));
  expect_error(Code::kInvalidArgument, {"byte 300 (token 24 of sequence 5, document 5)", "id 75"},
               [&] { data.check_tokens(75, 76); });
}

class DamagedIndex : public testing::Test {
 protected:
  DamagedIndex() {
    write_golden(folder_ / "g");
    idx_ = read_bytes(folder_ / "g.idx");
    bin_ = read_bytes(folder_ / "g.bin");
  }
  void refuse(const std::string& idx, const std::string& bin, Code code,
              std::initializer_list<std::string_view> parts) {
    write_bytes(folder_ / "d.idx", idx);
    write_bytes(folder_ / "d.bin", bin);
    expect_error(code, parts, [&] { IndexedDataset(folder_ / "d"); });
  }
  template <class T>
  std::string with(size_t offset, T value) const {
    std::string out = idx_;
    put(out, offset, value);
    return out;
  }

  TempFolder folder_;
  std::string idx_;
  std::string bin_;
};

TEST_F(DamagedIndex, EveryHeaderField) {
  refuse(with<char>(0, 'X'), bin_, Code::kCorrupt, {"d.idx", "MMIDIDX"});
  refuse(with<uint64_t>(9, 2), bin_, Code::kUnsupported, {"version 2"});
  refuse(with<uint8_t>(17, 0), bin_, Code::kCorrupt, {"code 0"});
  refuse(with<uint8_t>(17, 9), bin_, Code::kCorrupt, {"code 9"});
  refuse(with<uint8_t>(17, 4), bin_, Code::kCorrupt, {"sequence 0 ends at byte 12"});
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{3}, ~uint64_t{0},
                               uint64_t{1} << 63, uint64_t{1} << 62, uint64_t{1} << 32}) {
    refuse(with<uint64_t>(18, count), bin_, Code::kCorrupt, {"d.idx"});
    if (count != 3) refuse(with<uint64_t>(26, count), bin_, Code::kCorrupt, {"d.idx"});
  }
}

TEST_F(DamagedIndex, EveryEntry) {
  refuse(with<int32_t>(34, -3), bin_, Code::kCorrupt, {"sequence 0", "-3"});
  refuse(with<int32_t>(34, 4), bin_, Code::kCorrupt, {"sequence 1", "points to byte 6", "8"});
  refuse(with<int32_t>(38, 3), bin_, Code::kCorrupt, {"sequence 1 ends at byte 12"});
  refuse(with<int32_t>(38, 1), bin_, Code::kCorrupt, {"d.bin has 10 bytes", "8"});
  refuse(with<int64_t>(42, 2), bin_, Code::kCorrupt, {"sequence 0 points"});
  refuse(with<int64_t>(50, -6), bin_, Code::kCorrupt, {"sequence 1 points"});
  refuse(with<int64_t>(58, 1), bin_, Code::kCorrupt, {"boundary 0"});
  refuse(with<int64_t>(66, -1), bin_, Code::kCorrupt, {"boundary 1"});
  refuse(with<int64_t>(66, 3), bin_, Code::kCorrupt, {"boundary 2"});
  refuse(with<int64_t>(74, 7), bin_, Code::kCorrupt, {"sequence 7 of 2"});
  refuse(idx_, bin_ + "xx", Code::kCorrupt, {"12 bytes", "end-of-document"});
  refuse(idx_, "", Code::kCorrupt, {"0 bytes"});
}

TEST_F(DamagedIndex, TruncatedAnywhere) {
  for (size_t length = 0; length < idx_.size(); ++length) {
    refuse(idx_.substr(0, length), bin_, Code::kCorrupt, {"d.idx"});
  }
  for (size_t length = 0; length < bin_.size(); ++length) {
    refuse(idx_, bin_.substr(0, length), Code::kCorrupt, {"d.bin"});
  }
}

TEST_F(DamagedIndex, EveryFlippedBitIsFound) {
  write_bytes(folder_ / "d.bin", bin_);
  for (size_t bit = 0; bit < idx_.size() * 8; ++bit) {
    std::string damaged = idx_;
    damaged[bit / 8] ^= static_cast<char>(1u << (bit % 8));
    write_bytes(folder_ / "d.idx", damaged);
    // i16 instead of u16, 1 or 0 sequences in the first document: as good as the original.
    const size_t byte = bit / 8;
    const bool plausible = (byte == 17 || (byte >= 66 && byte < 74));
    try {
      const IndexedDataset data(folder_ / "d");
      EXPECT_TRUE(plausible) << "bit " << bit;
      for (int64_t i = 0; i < data.sequence_count(); ++i) data.bytes(i);
    } catch (const Error&) {
    }
  }
}

TEST_F(DamagedIndex, FloatsAreNotTokens) {
  std::string idx = with<uint8_t>(17, 7);
  put<int64_t>(idx, 50, 12);
  write_bytes(folder_ / "d.idx", idx);
  write_bytes(folder_ / "d.bin", std::string(20, '\0'));
  const IndexedDataset data(folder_ / "d");
  EXPECT_EQ(data.bytes(1).size(), 8u);
  expect_error(Code::kUnsupported, {"f32"}, [&] { data.read(0); });
}

TEST_F(DamagedIndex, MissingFiles) {
  EXPECT_FALSE(indexed_dataset_exists(folder_ / "none"));
  EXPECT_TRUE(indexed_dataset_exists(folder_ / "g"));
  expect_error(Code::kNotFound, {"none.idx"}, [&] { IndexedDataset(folder_ / "none"); });
}

TEST(IndexedDataset, OpensFromMemory) {
  const std::filesystem::path folder = test_data() / "indexed";
  const auto load = [&](const char* name) {
    const std::string text = read_bytes(folder / name);
    const auto bytes = std::as_bytes(std::span(text));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const auto idx = load("two_documents.idx"), bin = load("two_documents.bin");
  const IndexedDataset dataset(idx, bin, "memory");
  const IndexedDataset file(folder / "two_documents");
  ASSERT_EQ(dataset.sequence_count(), file.sequence_count());
  for (int64_t i = 0; i < file.sequence_count(); ++i) EXPECT_EQ(dataset.read(i), file.read(i));
  EXPECT_EQ(dataset.document_count(), file.document_count());
  expect_error(Code::kCorrupt, {"memory.idx"}, [&] { IndexedDataset({}, bin, "memory"); });
  expect_error(Code::kCorrupt, {"memory.bin"}, [&] { IndexedDataset(idx, {}, "memory"); });
  for (size_t size = 0; size < idx.size(); ++size) {
    const std::vector<std::byte> cut(idx.begin(), idx.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THROW(IndexedDataset(cut, bin, "memory"), Error) << size;
  }
}

}  // namespace
}  // namespace ds
