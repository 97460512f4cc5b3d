// Readers that jump between files, and whose files go while they are open.
#include "fresh_seed.h"
#include "unit/checkpoint/support.h"

namespace ds::test {
namespace {

constexpr int64_t kBytes = 13'000'001;

TensorMeta meta_of(int rank) {
  return make_meta("t" + std::to_string(rank), TensorKind::kModel, DType::kUInt8, {kBytes});
}

// Two files, each large enough to be read ahead.
std::vector<std::string> save_two(const fs::path& folder) {
  CheckpointWriterOptions options;
  options.folder = folder;
  options.tag = "t";
  options.topology.world = options.topology.data = 2;
  CheckpointWriter writer(options);
  std::vector<std::string> content;
  std::mt19937_64 random(ds::run_seed());
  for (int rank = 0; rank < 2; ++rank) {
    std::string& bytes = content.emplace_back(static_cast<size_t>(kBytes), '\0');
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(bytes.data() + i, &word, 8);
    }
  }
  writer.part().add_tensor(meta_of(0), bytes_of(content[0]));
  PartWriter other(writer.temporary(), 1, {});
  other.add_tensor(meta_of(1), bytes_of(content[1]));
  writer.merge(other.finish());
  writer.commit();
  return content;
}

void expect_range(const CheckpointReader& reader, const std::vector<std::string>& content, int rank,
                  int64_t begin, int64_t end) {
  std::string out(static_cast<size_t>(end - begin), 'x');
  reader.read_range(reader.tensor(meta_of(rank).name, TensorKind::kModel), begin, end,
                    std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(out ==
              content[static_cast<size_t>(rank)].substr(static_cast<size_t>(begin), out.size()))
      << begin << " to " << end << " of rank " << rank;
}

// What was read ahead of one file is not taken for the other's, wherever both are read.
TEST(Reading, JumpsBetweenFiles) {
  DS_SEED_TRACE();
  const TempFolder folder;
  const auto content = save_two(folder.path() / "save");
  const auto reader = CheckpointReader::open(folder.path() / "save");
  for (const int rank : {0, 1, 0}) {
    expect_range(reader, content, rank, 0, 6 << 20);
    expect_range(reader, content, 1 - rank, 6 << 20, (6 << 20) + 100'000);
    expect_range(reader, content, rank, 6 << 20, (6 << 20) + 100'000);
  }
  std::mt19937_64 random(ds::run_seed());
  for (int round = 0; round < 40; ++round) {
    const int64_t most = round % 4 == 0 ? 6'000'000 : 200'000;
    const auto begin = static_cast<int64_t>(random() % kBytes);
    const int64_t end =
        std::min(kBytes, begin + static_cast<int64_t>(random() % static_cast<uint64_t>(most)));
    expect_range(reader, content, static_cast<int>(random() % 2), begin, end);
  }
}

// A file that was opened is read to its end, also when somebody deletes the checkpoint meanwhile.
TEST(Reading, GoesOnWhenTheFolderIsDeleted) {
  DS_SEED_TRACE();
  const TempFolder folder;
  const auto content = save_two(folder.path() / "save");
  const auto reader = CheckpointReader::open(folder.path() / "save");
  for (const int rank : {0, 1}) expect_range(reader, content, rank, 0, 1000);
  fs::remove_all(folder.path() / "save");
  for (const int rank : {0, 1}) expect_range(reader, content, rank, 7'000'000, 7'001'000);
}

}  // namespace
}  // namespace ds::test
