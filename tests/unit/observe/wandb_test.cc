// Weights & Biases offline runs: bytes recorded from wandb's own writer, and long records read back
// by a reader that shares nothing with ours. tests/parity/check_wandb.py has wandb read our files.
#include "observe/wandb.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "base/checksum.h"
#include "base/error.h"
#include "fresh_seed.h"
#include "test_paths.h"

namespace ds {
namespace {

namespace fs = std::filesystem;

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

uint32_t slow_crc(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int k = 0; k < 8; ++k) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

// Payloads of a log, as LevelDB's documentation describes it. `empty_pieces` counts the first
// pieces without a byte, where just a header fits at the end of a block.
std::vector<std::string> payloads(std::string_view file, int* empty_pieces = nullptr) {
  EXPECT_EQ(file.substr(0, 7), std::string_view(":W&B\xE1\xBE\0", 7));
  std::vector<std::string> out;
  std::string open;
  bool is_open = false;
  for (size_t at = 7; at < file.size();) {
    const size_t room = 32768 - at % 32768;
    if (room < 7) {
      EXPECT_EQ(file.substr(at, room), std::string(room, '\0'));
      at += room;
      continue;
    }
    const auto byte = [&](size_t i) {
      return static_cast<uint32_t>(static_cast<uint8_t>(file.at(at + i)));
    };
    const uint32_t crc = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
    const size_t size = byte(4) | byte(5) << 8;
    const uint32_t type = byte(6);
    EXPECT_LE(7 + size, room);
    EXPECT_EQ(slow_crc(file.substr(at + 6, 1 + size)), crc);
    EXPECT_EQ(!is_open, type == 1 || type == 2) << "a piece out of place";
    if (empty_pieces != nullptr && type == 2 && size == 0) ++*empty_pieces;
    open += file.substr(at + 7, size);
    at += 7 + size;
    is_open = type == 2 || type == 3;
    if (!is_open) out.push_back(std::exchange(open, ""));
  }
  EXPECT_FALSE(is_open);
  return out;
}

WandbRun golden_run() {
  WandbRun run;
  run.id = "abcd1234";
  run.entity = "team";
  run.project = "project";
  run.group = "group";
  run.host = "host";
  run.start_time = 1700000000.5;
  run.config = {{"lr", 0.25}, {"list", {1, 2}}, {"nested", {{"a", true}}}};
  return run;
}

TEST(Wandb, BytesAreThoseOfItsOwnWriter) {
  WandbLog log;
  std::string bytes = log.begin(golden_run());
  bytes += log.row(0, 1700000001.5, {{"Train/Samples/lr", 0.125}, {"loss", 2}});
  bytes += log.row(300, 1700000002.5, {{"loss", std::numeric_limits<double>::quiet_NaN()}});
  // Long enough to be cut into pieces at two ends of blocks.
  std::vector<Metric> many;
  for (int i = 0; i < 2000; ++i) many.push_back({"metric/" + std::to_string(i), i * 0.5});
  bytes += log.row(400, 1700000003.5, many);
  bytes += log.end(1700000004.5);
  EXPECT_EQ(bytes.size(), slurp(test_data() / "wandb/run.wandb").size());
  EXPECT_TRUE(bytes == slurp(test_data() / "wandb/run.wandb"));
}

// Writes rows of random lengths and reads them back; returns the number of empty first pieces.
int check_random_lengths(uint32_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  WandbLog log;
  std::string bytes = log.begin(golden_run());
  size_t rows = 0;
  while (bytes.size() < (size_t{1} << 21)) {
    // Lengths around what is left of a block are the interesting ones.
    const size_t room = 32768 - bytes.size() % 32768;
    const size_t length = random() % 4 == 0 ? random() % 70000 : random() % 300 + room % 2000;
    bytes += log.row(static_cast<int64_t>(rows), 1700000001,
                     {{std::string(length + 1, static_cast<char>('a' + rows % 26)), 1}});
    ++rows;
  }
  bytes += log.end(1700000002);
  int empty_pieces = 0;
  const std::vector<std::string> read = payloads(bytes, &empty_pieces);
  EXPECT_EQ(read.size(), 2 + 2 * rows + 1);
  if (read.size() != 2 + 2 * rows + 1) return empty_pieces;
  for (size_t i = 0; i < read.size(); ++i) {
    // Record.num comes first: a varint counted from 1.
    EXPECT_EQ(read[i][0], '\x08');
    const uint64_t low = static_cast<uint8_t>(read[i][1]);
    EXPECT_EQ(low & 0x7F, (i + 1) & 0x7F);
  }
  for (size_t r = 0; r < rows; ++r) {
    const char letter = static_cast<char>('a' + r % 26);
    EXPECT_NE(read[2 + 2 * r].find(letter), std::string::npos);
  }
  return empty_pieces;
}

TEST(Wandb, RecordsOfEveryLengthSurviveTheBlocks) { check_random_lengths(ds::fresh_seed()); }

TEST(Wandb, ABlockMayEndWithTheHeaderOfAnEmptyFirstPiece) {
  EXPECT_GT(check_random_lengths(475), 0);  // one of few seeds that make one
}

TEST(Wandb, StepsGrow) {
  WandbLog log;
  std::string bytes = log.begin(golden_run());
  for (const int64_t step : {8, 8, 4, 16}) bytes += log.row(step, 1700000001, {{"x", 1}});
  const std::vector<std::string> read = payloads(bytes);
  const int64_t expected[] = {8, 9, 10, 16};
  for (size_t i = 0; i < 4; ++i) {
    const std::string step = "_step\x82\x01" + std::string(1, expected[i] < 10 ? '\x01' : '\x02') +
                             std::to_string(expected[i]);
    EXPECT_NE(read[3 + 2 * i].find(step), std::string::npos) << i;
  }
}

TEST(Wandb, WritesAFolderThatSyncFinds) {
  std::string pattern = (fs::temp_directory_path() / "ds-wandb-XXXXXX").string();
  const fs::path folder = ::mkdtemp(pattern.data());
  WandbOptions options;
  options.output_path = folder.string();
  {
    const auto monitor = make_wandb_monitor(options);
    monitor->write({8, 8}, {{"loss", 1}});
    monitor->sync();
  }
  fs::path run;
  for (const auto& entry : fs::directory_iterator(folder / "wandb")) run = entry.path();
  const std::string name = run.filename().string();  // offline-run-20240131_235959-abcd1234
  ASSERT_EQ(name.size(), 12 + 15 + 1 + 8u) << name;
  EXPECT_TRUE(name.starts_with("offline-run-2"));
  const std::string id = name.substr(28);
  EXPECT_TRUE(fs::is_directory(run / "files"));
  EXPECT_EQ(payloads(slurp(run / ("run-" + id + ".wandb"))).size(), 5u);
  fs::remove_all(folder);

  options.output_path = "/proc/nowhere";
  EXPECT_THROW(make_wandb_monitor(options), Error);
}

TEST(Checksum, Crc32IsTheOneOfZlib) {
  const auto bytes = std::as_bytes(std::span("123456789", 9));
  EXPECT_EQ(crc32_ieee(bytes), 0xCBF43926u);
  EXPECT_EQ(crc32_ieee(bytes.subspan(4), crc32_ieee(bytes.first(4))), 0xCBF43926u);
}

}  // namespace
}  // namespace ds
