// What a load overwrites is put back when it fails, wherever the checkpoint is damaged, however its
// tensors arrive, and whatever there is room for.
#include "engine/load_protection.h"

#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

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

// A buffer of noise, part of which serves as memory at hand.
struct Engineless {
  io::Buffer memory;
  std::vector<std::byte> before;
  std::vector<std::byte> spare;

  Engineless(std::mt19937_64& rng, int64_t bytes)
      : memory(bytes), before(noise(rng, memory.bytes().size())), spare(rng() % 3 * (1 << 20)) {
    std::copy(before.begin(), before.end(), memory.data());
  }
  // In pieces of odd sizes, one of them empty.
  std::vector<std::span<std::byte>> at_hand() {
    const std::span<std::byte> all(spare);
    const size_t third = all.size() / 3;
    return {all.first(third), all.subspan(third, 0), all.subspan(third)};
  }
  bool unchanged() const {
    return std::equal(before.begin(), before.end(), memory.bytes().begin());
  }
};

// Reads until nothing is open, then what was only checked; how much that was.
int64_t load(LoadProtection& protection, const CheckpointReader& reader,
             std::span<const TensorTarget> targets) {
  CallControl control;
  LoadParts parts(control, targets);
  while (!parts.open().empty()) protection.next(reader, parts);
  int64_t twice = 0;
  while (!parts.finished()) {
    const std::span<const TensorTarget> part = parts.take();
    twice += LoadParts::bytes_of(part);
    reader.read_all(part);
  }
  return twice;
}

TEST(LoadProtection, PutsBackWhereverAReadFails) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  const Folder folder;
  write_checkpoint(folder.path("save"), rng);
  const std::string blob = folder.path("save/t/data-00000.bin");
  const auto size = static_cast<std::streamoff>(fs::file_size(blob));
  ThreadPool pool(2);
  int whole = 0, in_part = 0;
  for (int round = 0; round < 16; ++round) {
    SCOPED_TRACE(round);
    Engineless engine(rng, int64_t{size} + (1 << 17));
    const std::streamoff damaged = static_cast<std::streamoff>(rng() % static_cast<uint64_t>(size));
    // From no room at all to twice what is needed.
    const int64_t free = round == 0 ? -1 : static_cast<int64_t>(rng() % (4 * size));
    turn_bit(blob, damaged);
    CheckpointReader reader = CheckpointReader::open(folder.path("save"));
    if (round % 2 == 0) reader.use_threads(&pool);
    const std::vector<TensorTarget> targets = aim_at(reader, engine.memory.bytes(), rng);
    ASSERT_TRUE(LoadProtection::protects(targets));
    {
      LoadProtection protection(targets, engine.at_hand(), free, &pool);
      error_of(Code::kCorrupt, [&] { load(protection, reader, targets); });
      protection.put_back();
    }
    EXPECT_TRUE(engine.unchanged());
    turn_bit(blob, damaged);
    // And a whole one is read as without; by another reader, as this one may remember the damage.
    const CheckpointReader again = CheckpointReader::open(folder.path("save"));
    const std::vector<TensorTarget> places = aim_at(again, engine.memory.bytes(), rng);
    LoadProtection protection(places, engine.at_hand(), free, &pool);
    (load(protection, again, places) == 0 ? whole : in_part) += 1;
    const std::vector<std::byte> read(engine.memory.bytes().begin(), engine.memory.bytes().end());
    again.read_all(places);
    EXPECT_TRUE(std::equal(read.begin(), read.end(), engine.memory.bytes().begin()));
    EXPECT_FALSE(engine.unchanged());
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(in_part, 0);
}

// What is read is kept, so that a later part that fails changes nothing.
TEST(LoadProtection, PutsBackWhatOtherPartsHaveRead) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  const Folder folder;
  write_checkpoint(folder.path("save"), rng);
  ThreadPool pool(1);
  const CheckpointReader reader = CheckpointReader::open(folder.path("save"));
  Engineless engine(rng, int64_t{1} << 26);
  const std::vector<TensorTarget> targets = aim_at(reader, engine.memory.bytes(), rng);
  LoadProtection protection(targets, engine.at_hand(), -1, &pool);
  CallControl control;
  LoadParts parts(control, targets);
  protection.next(reader, parts);
  EXPECT_FALSE(engine.unchanged());
  protection.put_back();
  EXPECT_TRUE(engine.unchanged());
}

TEST(LoadProtection, KnowsWhatItCannotKeep) {
  std::vector<std::byte> memory(1000);
  TensorTarget target;
  target.out = memory;
  TensorTarget elsewhere;
  elsewhere.sink = [](uint64_t, std::span<const std::byte>) {};
  std::array<TensorTarget, 2> both = {target, elsewhere};
  EXPECT_TRUE(LoadProtection::protects({both.data(), 1}));
  EXPECT_FALSE(LoadProtection::protects(both));
  both[1].sink_memory = {std::span(memory).first(10)};
  EXPECT_TRUE(LoadProtection::protects(both));
  EXPECT_EQ(OverwrittenMemory::bytes_of(both[0]), 1000);
  EXPECT_EQ(OverwrittenMemory::bytes_of(both[1]), 10);
}

constexpr int64_t kMega = 1 << 20;

TEST(BytesToCheck, AreThoseThatThereIsNoRoomFor) {
  LoadProspect all{.file_bytes = 600 * kMega, .memory_bytes = 600 * kMega, .room = 600 * kMega};
  EXPECT_EQ(bytes_to_check(all), 0);
  all.room = 200 * kMega;
  EXPECT_EQ(bytes_to_check(all), 400 * kMega);
  all.memory_bytes = 300 * kMega;  // half of what the files hold
  EXPECT_EQ(bytes_to_check(all), 200 * kMega);
  all.memory_bytes = 0;
  EXPECT_EQ(bytes_to_check(all), 0);
}

// Reading some twice then takes as long as the memory for the others.
TEST(BytesToCheck, LeaveWhatMemoryComesForMeanwhile) {
  LoadProspect slow{.file_bytes = 1000 * kMega,
                    .memory_bytes = 1000 * kMega,
                    .ready = 100 * kMega,
                    .room = 1000 * kMega};
  EXPECT_EQ(bytes_to_check(slow), 0) << "no rate is known";
  slow.disk_rate = 2.0 * kMega;
  slow.memory_rate = 1.0 * kMega;
  EXPECT_EQ(bytes_to_check(slow), 400 * kMega);
  slow.memory_rate = 1.75 * kMega;
  EXPECT_EQ(bytes_to_check(slow), 0) << "the last 25 MiB are waited for";
  slow.memory_rate = 5.0 * kMega;
  EXPECT_EQ(bytes_to_check(slow), 0);
  slow.room = 300 * kMega;
  EXPECT_EQ(bytes_to_check(slow), 700 * kMega);
}

// The first of two copies of the same place is what was there.
TEST(OverwrittenMemory, OverlappingPlacesComeBackAsTheyWere) {
  ThreadPool pool(1);
  std::vector<std::byte> memory(100, std::byte{7}), spare(130);
  for (const int64_t from_system : {200, 70}) {
    OverwrittenMemory kept({std::span(spare).first(30), std::span(spare).subspan(30)}, from_system,
                           &pool);
    EXPECT_GE(kept.room(), 130 + from_system);
    for (const int value : {1, 2}) {
      kept.keep(memory);
      std::fill(memory.begin(), memory.end(), static_cast<std::byte>(value));
    }
    kept.put_back();
    EXPECT_EQ(memory, std::vector<std::byte>(100, std::byte{7}));
    error_of(Code::kInternal, [&] {
      for (int i = 0; i < 50; ++i) kept.keep(memory);
    });
  }
}

// The bounds are of the time that surely was within, and of all that the test saw.
TEST(LoadParts, LastHalfASecondAtTheRateSoFar) {
  constexpr int64_t kMost = int64_t{1} << 32;
  TensorRecord record;
  record.meta.dtype = DType::kFloat32;
  record.meta.shape = {1 << 22};  // 16 MiB
  std::vector<TensorTarget> targets(64);
  for (TensorTarget& target : targets) target.tensor = &record;
  CallControl control;
  for (const int milliseconds : {0, 200}) {
    const Stopwatch outside;
    LoadParts parts(control, targets);
    parts.begin();
    ASSERT_TRUE(parts.next());
    EXPECT_EQ(parts.bytes_of_part(), LoadParts::kFirstBytes);
    const Stopwatch inside;
    int64_t moved = LoadParts::bytes_of(parts.take());
    EXPECT_EQ(moved, LoadParts::kFirstBytes);
    moved += LoadParts::bytes_of(parts.check(4, LoadParts::kFirstBytes));
    EXPECT_EQ(moved, 2 * LoadParts::kFirstBytes);
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    const double least = inside.seconds();
    const int64_t part = parts.bytes_of_part();
    const auto in_half_a_second = [&](double seconds) {
      const double bytes = static_cast<double>(moved) / std::max(seconds, 1e-3) / 2;
      return std::clamp(bytes, double{LoadParts::kFirstBytes}, double{kMost});
    };
    EXPECT_LE(static_cast<double>(part), in_half_a_second(least) + 1);
    EXPECT_GE(static_cast<double>(part), in_half_a_second(outside.seconds()) - 1);
  }
}

}  // namespace
}  // namespace ds
