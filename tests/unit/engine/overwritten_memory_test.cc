// What a load overwrites is put back when it fails, wherever the checkpoint is damaged and however
// its tensors arrive.
#include "engine/overwritten_memory.h"

#include <array>
#include <cstring>
#include <fstream>
#include <random>

#include "engine_world.h"
#include "fresh_seed.h"
#include "unit/checkpoint/support.h"

namespace ds {
namespace {

using namespace engine_test;  // NOLINT: what these tests are about

std::vector<std::byte> noise(std::mt19937_64& rng, size_t size) {
  std::vector<std::byte> out(size);
  for (std::byte& byte : out) byte = static_cast<std::byte>(rng());
  return out;
}

// Tensors of many sizes, two of them cut by columns, which lie scattered.
void write_checkpoint(const std::string& folder, std::mt19937_64& rng) {
  CheckpointWriterOptions options;
  options.folder = folder;
  options.tag = "t";
  options.blob.chunk_bytes = 65536;
  CheckpointWriter writer(options);
  for (int i = 0; i < 8; ++i) {
    const int64_t rows = std::array<int64_t, 4>{5000, 3, 900, 2500}[static_cast<size_t>(i % 4)];
    TensorMeta meta;
    meta.name = str_cat("t", i);
    meta.kind = TensorKind::kModel;
    meta.dtype = DType::kInt32;
    meta.shape = {rows, 200};
    if (i % 4 == 2) {
      for (const int64_t half : {0, 1}) {
        writer.part().add_tensor(meta, Box{{0, half * 100}, {rows, 100}},
                                 noise(rng, static_cast<size_t>(rows * 400)));
      }
      continue;
    }
    writer.part().add_tensor(meta, noise(rng, static_cast<size_t>(rows * 800)));
  }
  writer.commit();
}

void turn_bit(const std::string& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
  ASSERT_TRUE(file.flush().good());
}

// Places in one buffer, at random distances; a third of them behind sinks that say where they
// write.
std::vector<TensorTarget> aim_at(const CheckpointReader& reader, std::span<std::byte> memory,
                                 std::mt19937_64& rng) {
  std::vector<TensorTarget> targets;
  size_t at = 0;
  for (const TensorRecord& record : reader.manifest().tensors) {
    at += std::array<size_t, 3>{0, 4096 - at % 4096, 4 * (rng() % 999)}[rng() % 3];
    const auto size = static_cast<size_t>(Shape(record.meta.shape).elements() * 4);
    const std::span<std::byte> place = memory.subspan(at, size);
    at += size;
    targets.push_back({&record, {}, {}});
    if (rng() % 3 > 0) {
      targets.back().out = place;
      continue;
    }
    targets.back().sink = [place](uint64_t begin, std::span<const std::byte> bytes) {
      std::copy(bytes.begin(), bytes.end(), place.begin() + static_cast<std::ptrdiff_t>(begin));
    };
    targets.back().sink_memory = {place.first(size / 2), place.subspan(size / 2)};
  }
  return targets;
}

TEST(OverwrittenMemory, IsPutBackWhereverAReadFails) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  const Folder folder;
  write_checkpoint(folder.path("save"), rng);
  const std::string blob = folder.path("save/t/data-00000.bin");
  const auto size = static_cast<std::streamoff>(fs::file_size(blob));
  ThreadPool pool(2);
  io::Buffer memory(int64_t{size} + (1 << 17));
  int changed = 0;
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    const std::vector<std::byte> before = noise(rng, memory.bytes().size());
    std::copy(before.begin(), before.end(), memory.data());
    const std::streamoff damaged = static_cast<std::streamoff>(rng() % static_cast<uint64_t>(size));
    turn_bit(blob, damaged);
    CheckpointReader reader = CheckpointReader::open(folder.path("save"));
    if (round % 2 == 0) reader.use_threads(&pool);
    const std::vector<TensorTarget> targets = aim_at(reader, memory.bytes(), rng);
    auto kept = OverwrittenMemory::of(targets, -1, &pool);
    ASSERT_TRUE(kept);
    const OverwriteNotice keep = [&](std::span<std::byte> place) { kept->keep(place); };
    error_of(Code::kCorrupt, [&] { reader.read_all(targets, keep); });
    const auto same = [&] {
      return std::equal(before.begin(), before.end(), memory.bytes().begin());
    };
    changed += same() ? 0 : 1;
    kept->put_back();
    EXPECT_TRUE(same());
    turn_bit(blob, damaged);
    // And a whole one is read as without; by another reader, as this one may remember the damage.
    const CheckpointReader whole = CheckpointReader::open(folder.path("save"));
    const std::vector<TensorTarget> again = aim_at(whole, memory.bytes(), rng);
    kept = OverwrittenMemory::of(again, -1, &pool);
    whole.read_all(again, keep);
    const std::vector<std::byte> read(memory.bytes().begin(), memory.bytes().end());
    whole.read_all(again);
    EXPECT_TRUE(std::equal(read.begin(), read.end(), memory.bytes().begin()));
    EXPECT_FALSE(same());
  }
  EXPECT_GT(changed, 6) << "reads that failed had overwritten nothing";
}

// The first of two copies of the same place is what was there.
TEST(OverwrittenMemory, OverlappingPlacesComeBackAsTheyWere) {
  ThreadPool pool(1);
  std::vector<std::byte> memory(100, std::byte{7});
  TensorTarget target;
  target.out = memory;
  const std::array<TensorTarget, 2> targets = {target, target};
  auto kept = OverwrittenMemory::of(targets, -1, &pool);
  for (const int value : {1, 2}) {
    kept->keep(memory);
    std::fill(memory.begin(), memory.end(), static_cast<std::byte>(value));
  }
  kept->put_back();
  EXPECT_EQ(memory, std::vector<std::byte>(100, std::byte{7}));
  error_of(Code::kInternal, [&] {
    for (int i = 0; i < 50; ++i) kept->keep(memory);
  });
}

TEST(OverwrittenMemory, LeavesHalfOfWhatIsFreeAndKnowsWhatItCannotKeep) {
  ThreadPool pool(1);
  std::vector<std::byte> memory(1000);
  TensorTarget target;
  target.out = memory;
  EXPECT_TRUE(OverwrittenMemory::of({&target, 1}, 2000, &pool));
  EXPECT_FALSE(OverwrittenMemory::of({&target, 1}, 1999, &pool));
  EXPECT_TRUE(OverwrittenMemory::of({&target, 1}, -1, &pool));
  TensorTarget elsewhere;
  elsewhere.sink = [](uint64_t, std::span<const std::byte>) {};
  const std::array<TensorTarget, 2> both = {target, elsewhere};
  EXPECT_FALSE(OverwrittenMemory::of(both, -1, &pool));
  elsewhere.sink_memory = {std::span(memory).first(10)};
  EXPECT_TRUE(OverwrittenMemory::of({&elsewhere, 1}, 20, &pool));
  EXPECT_FALSE(OverwrittenMemory::of({&elsewhere, 1}, 19, &pool));
}

}  // namespace
}  // namespace ds
