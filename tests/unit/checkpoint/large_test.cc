// Checkpoints larger than one block: what is written beside the transfers and read ahead of the
// reader has the same bytes, the same checksums and the same errors.
#include <pthread.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <limits>
#include <thread>

#include "base/checksum.h"
#include "base/thread_pool.h"
#include "checkpoint/background_save.h"
#include "fresh_seed.h"
#include "unit/checkpoint/support.h"

namespace ds::test {
namespace {

// Cheap bytes that differ everywhere.
std::vector<std::byte> content(uint64_t seed, uint64_t item, size_t n) {
  std::mt19937_64 rng(seed * 1000 + item);
  std::vector<uint64_t> words(n / 8 + 1);
  for (uint64_t& word : words) word = rng();
  std::vector<std::byte> out(n);
  std::memcpy(out.data(), words.data(), n);
  return out;
}

struct Item {
  TensorMeta meta;
  size_t bytes;
};

// Sizes around the borders of chunks and blocks, small tensors between large ones.
std::vector<Item> items(std::mt19937_64& rng) {
  std::vector<Item> out;
  const size_t sizes[] = {9'000'000, 17, (8 << 20) - 4096, 70'000, 1 << 20, 5, 12'345'678, 65'536};
  for (const size_t size : sizes) {
    const size_t n = size + rng() % 3;
    out.push_back({make_meta("t" + std::to_string(out.size()), TensorKind::kModel, DType::kUInt8,
                             {static_cast<int64_t>(n)}),
                   n});
  }
  return out;
}

void add_items(PartWriter& part, const std::vector<Item>& list, uint64_t seed) {
  for (size_t i = 0; i < list.size(); ++i) {
    part.add_tensor(list[i].meta, content(seed, i, list[i].bytes));
  }
}

void expect_items(const CheckpointReader& reader, const std::vector<Item>& list, uint64_t seed) {
  for (size_t i = 0; i < list.size(); ++i) {
    std::vector<std::byte> out(list[i].bytes);
    reader.read(reader.tensor(list[i].meta.name, TensorKind::kModel), out);
    EXPECT_TRUE(out == content(seed, i, list[i].bytes)) << list[i].meta.name;
  }
}

CheckpointWriterOptions large_options(const fs::path& save, const std::string& tag) {
  CheckpointWriterOptions options;
  options.folder = save;
  options.tag = tag;
  return options;
}

// Threads, a snapshot and the size of chunks change how a blob is written, not what is in it.
TEST(Large, EveryWayOfWritingGivesTheSameFile) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  const std::vector<Item> list = items(rng);
  ThreadPool pool(3);
  // Nothing, less than comes, more than comes, more than any disk has room for.
  const int64_t expected[] = {0, int64_t{1} << 20, int64_t{300} << 20,
                              std::numeric_limits<int64_t>::max()};
  int turn = 0;
  for (const int64_t chunk : {int64_t{1} << 20, int64_t{4096}, int64_t{100'000}}) {
    SCOPED_TRACE(chunk);
    io::BufferPool hold(blob_block_bytes(chunk));
    std::string blob, manifest;
    for (int way = 0; way < 8; ++way) {
      SCOPED_TRACE(way);
      auto options = large_options(save, "t");
      options.blob = {chunk, way % 2 == 1 ? &pool : nullptr, way / 2 == 1 ? &hold : nullptr,
                      expected[(turn + turn / 8) % 4]};
      ++turn;
      CheckpointWriter writer(options);
      // From where it lies, when it lies well.
      std::vector<io::Buffer> lasting;
      const size_t shift = way < 6 ? 0 : 64;
      for (size_t i = 0; i < list.size(); ++i) {
        const std::vector<std::byte> bytes = content(ds::run_seed(), i, list[i].bytes);
        if (way < 4) {
          writer.part().add_tensor(list[i].meta, bytes);
          continue;
        }
        lasting.emplace_back(static_cast<int64_t>(bytes.size() + shift));
        const auto place = lasting.back().bytes().subspan(shift, bytes.size());
        std::copy(bytes.begin(), bytes.end(), place.begin());
        writer.part().add_tensor(list[i].meta, place, Lifetime::kUntilFinish);
      }
      writer.commit();
      const std::string written = slurp(save / "t/data-00000.bin");
      if (way == 0) {
        blob = written;
        manifest = slurp(save / "t/manifest.dsm");
        const BlobRecord record = CheckpointReader::open(save).manifest().blobs.at(0);
        ASSERT_EQ(record.size, blob.size());
        for (size_t i = 0; i < record.checksums.size(); ++i) {
          const auto at = i * static_cast<size_t>(chunk);
          const auto n = std::min<size_t>(static_cast<size_t>(chunk), blob.size() - at);
          ASSERT_EQ(record.checksums[i], xxh3_64(bytes_of(blob).subspan(at, n))) << i;
        }
      }
      EXPECT_TRUE(written == blob);
      EXPECT_TRUE(slurp(save / "t/manifest.dsm") == manifest);
    }
  }
}

// Of each the end that fills no block of the disk waits in a buffer, of which there are only so
// many.
TEST(Large, ManyThatAreWrittenFromWhereTheyLie) {
  DS_SEED_TRACE();
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  constexpr size_t kCount = 24, kBytes = (512 << 10) + 100;
  std::vector<Item> list;
  std::vector<io::Buffer> lasting;
  CheckpointWriter writer(large_options(save, "t"));
  for (size_t i = 0; i < kCount; ++i) {
    list.push_back({make_meta("t" + std::to_string(i), TensorKind::kModel, DType::kUInt8,
                              {static_cast<int64_t>(kBytes)}),
                    kBytes});
    lasting.emplace_back(static_cast<int64_t>(kBytes));
    const auto place = lasting.back().bytes().first(kBytes);
    const std::vector<std::byte> bytes = content(ds::run_seed(), i, kBytes);
    std::copy(bytes.begin(), bytes.end(), place.begin());
    writer.part().add_tensor(list.back().meta, place, Lifetime::kUntilFinish);
  }
  writer.commit();
  const CheckpointReader reader = CheckpointReader::open(save);
  EXPECT_TRUE(reader.verify_all().empty());
  expect_items(reader, list, ds::run_seed());
}

TEST(Large, AnyOrderOfReadingGivesTheSameBytes) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  const std::vector<Item> list = items(rng);
  ThreadPool pool(3);
  for (const int64_t chunk : {int64_t{1} << 20, int64_t{100'000}}) {
    SCOPED_TRACE(chunk);
    auto options = large_options(save, "t");
    options.blob.chunk_bytes = chunk;
    CheckpointWriter writer(options);
    add_items(writer.part(), list, ds::run_seed());
    writer.commit();
    CheckpointReader reader = CheckpointReader::open(save);
    expect_items(reader, list, ds::run_seed());
    EXPECT_TRUE(reader.verify_all().empty());
    reader.use_threads(&pool);
    expect_items(reader, list, ds::run_seed());
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 mine(ds::run_seed() + static_cast<uint64_t>(t));
        for (int i = 0; i < 40; ++i) {
          const size_t item = mine() % list.size();
          const std::vector<std::byte> whole = content(ds::run_seed(), item, list[item].bytes);
          const size_t from = mine() % whole.size();
          const size_t n = mine() % 4 == 0 ? whole.size() - from
                                           : std::min<size_t>(mine() % 5000, whole.size() - from);
          std::vector<std::byte> out(n);
          const auto begin = static_cast<int64_t>(from);
          reader.read_range(reader.tensor(list[item].meta.name, TensorKind::kModel), begin,
                            begin + static_cast<int64_t>(n), out);
          EXPECT_TRUE(std::equal(out.begin(), out.end(),
                                 whole.begin() + static_cast<std::ptrdiff_t>(from)));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Large, DamageIsLocatedWhileReadingAhead) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  const std::vector<Item> list = items(rng);
  CheckpointWriter writer(large_options(save, "t"));
  add_items(writer.part(), list, ds::run_seed());
  writer.commit();
  const fs::path file = save / "t/data-00000.bin";
  const std::string good = slurp(file);
  const CheckpointReader reader = CheckpointReader::open(save);
  for (int round = 0; round < 10; ++round) {
    const size_t item = std::array<size_t, 3>{0, 2, 6}[rng() % 3];
    const TensorRecord& tensor = reader.tensor("t" + std::to_string(item), TensorKind::kModel);
    const size_t at = tensor.slices[0].range.offset + rng() % list[item].bytes;
    poke(file, at, static_cast<char>(good[at] ^ 1));
    std::vector<std::byte> out(list[item].bytes);
    const Error error = error_of([&] { reader.read(tensor, out); });
    EXPECT_EQ(error.code(), Code::kCorrupt);
    constexpr size_t kChunk = kDefaultChunkBytes;
    const std::string chunk = "chunk " + std::to_string(at / kChunk) + " of ";
    EXPECT_NE(error.message().find(chunk), std::string::npos) << error.message();
    const std::vector<Damage> damage = reader.verify_all();
    ASSERT_EQ(damage.size(), 1u);
    EXPECT_EQ(damage[0].begin, at / kChunk * kChunk);
    poke(file, at, good[at]);
    EXPECT_TRUE(reader.verify_all().empty());
  }
  expect_items(reader, list, ds::run_seed());
  // Cut short behind the reader's back: no hang, and the place is named.
  fs::resize_file(file, 10'000'000);
  std::vector<std::byte> out(list[6].bytes);
  const Error error = error_of([&] { reader.read(reader.tensor("t6", TensorKind::kModel), out); });
  EXPECT_EQ(error.code(), Code::kCorrupt);
  EXPECT_NE(error.message().find("truncated"), std::string::npos) << error.message();
}

TEST(Background, ASnapshotIsWhatWasAddedAndBuffersServeAgain) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  const std::vector<Item> list = items(rng);
  MemoryAccount account;
  int64_t held = 0;
  {
    BackgroundSave background(&account);
    ThreadPool pool(2);
    for (int step = 0; step < 3; ++step) {
      background.wait();
      auto options = large_options(save, "step" + std::to_string(step));
      options.blob.pool = &pool;
      options.blob.hold = background.buffers();
      auto writer = std::make_unique<CheckpointWriter>(options);
      for (size_t i = 0; i < list.size(); ++i) {
        std::vector<std::byte> bytes =
            content(ds::run_seed() + static_cast<uint64_t>(step), i, list[i].bytes);
        writer->part().add_tensor(list[i].meta, bytes);
        std::fill(bytes.begin(), bytes.end(), std::byte{0});  // training goes on
      }
      background.start(std::move(writer), options.tag);
    }
    background.wait();
    held = account.now(MemoryTag::kIo);
    EXPECT_GT(held, 30 << 20);
    EXPECT_EQ(account.peak(MemoryTag::kIo), held) << "buffers were kept";
  }
  EXPECT_EQ(account.now(MemoryTag::kIo), 0);
  EXPECT_EQ(read_latest(save), "step2");
  for (int step = 0; step < 3; ++step) {
    expect_items(CheckpointReader::open(save, "step" + std::to_string(step)), list,
                 ds::run_seed() + static_cast<uint64_t>(step));
  }
}

// Training goes on in memory that lasts: with buffers that hold it a save reads nothing later.
TEST(Background, ASnapshotCopiesWhatLastsToo) {
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  constexpr int64_t kBytes = int64_t{4} << 20;
  MemoryAccount account;
  BackgroundSave background(&account);
  auto options = large_options(save, "t");
  options.blob.hold = background.buffers();
  CheckpointWriter writer(options);
  io::Buffer memory(kBytes);  // lies well for a direct write
  const std::vector<std::byte> good = content(1, 1, static_cast<size_t>(kBytes));
  std::copy(good.begin(), good.end(), memory.bytes().begin());
  writer.part().add_tensor(make_meta("w", TensorKind::kModel, DType::kUInt8, {kBytes}),
                           memory.bytes(), Lifetime::kUntilFinish);
  std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{0});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(fs::file_size(writer.temporary() / "data-00000.bin"), 0u);
  writer.commit();
  EXPECT_TRUE(CheckpointReader::open(save).verify_all().empty());
}

TEST(Background, AFailureIsToldOnceAndTheOldCheckpointStays) {
  DS_SEED_TRACE();
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  save_sample(large_options(save, "old"), ds::run_seed(), 1);
  MemoryAccount account;
  BackgroundSave background(&account);
  background.wait();
  auto options = large_options(save, "new");
  options.blob.hold = background.buffers();
  auto writer = std::make_unique<CheckpointWriter>(options);
  const TensorMeta meta = make_meta("w", TensorKind::kModel, DType::kUInt8, {2});
  writer->part().begin_tensor(meta, full_box(meta.shape));
  background.start(std::move(writer), "new");  // its last tensor is not ended
  background.join();
  const Error error = error_of([&] { background.wait(); });
  EXPECT_EQ(error.code(), Code::kState);
  EXPECT_NE(error.message().find("'new'"), std::string::npos) << error.message();
  EXPECT_NO_THROW(background.wait());
  EXPECT_TRUE(leftovers(save).empty());
  EXPECT_EQ(read_latest(save), "old");
  expect_sample(CheckpointReader::open(save), ds::run_seed());
}

// What cannot be done in the background is done at once.
TEST(Background, ASaveNeedsNoThread) {
  pthread_attr_t before, no_room;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&no_room), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&no_room, size_t{1} << 50), 0);  // beyond the address space
  MemoryAccount account;
  BackgroundSave background(&account);
  bool saved = false;
  ASSERT_EQ(pthread_setattr_default_np(&no_room), 0);
  background.start([&] { saved = true; }, "t");
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  EXPECT_TRUE(saved);
  EXPECT_NO_THROW(background.wait());
  pthread_attr_destroy(&no_room);
  pthread_attr_destroy(&before);
}

// Killed while a save goes on in the background, the checkpoint before it loads.
TEST(Background, KilledInTheMiddleTheOldCheckpointLoads) {
  DS_SEED_TRACE();
  std::mt19937_64 rng(ds::run_seed());
  const TempFolder folder;
  const fs::path save = folder.path() / "save";
  const std::vector<Item> list = items(rng);
  {
    CheckpointWriter writer(large_options(save, "step0"));
    add_items(writer.part(), list, ds::run_seed());
    writer.commit();
  }
  int interrupted = 0;
  for (int round = 1; round <= 12; ++round) {
    SCOPED_TRACE(round);
    const std::string tag = "step" + std::to_string(round);
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      MemoryAccount account;
      BackgroundSave background(&account);
      auto options = large_options(save, tag);
      options.counters.global_steps = round;
      options.blob.hold = background.buffers();
      auto writer = std::make_unique<CheckpointWriter>(options);
      add_items(writer->part(), list, ds::run_seed());
      background.start(std::move(writer), tag);
      if (::write(ends[1], "x", 1) != 1) ::_exit(1);
      background.join();
      ::pause();
    }
    char begun;
    ASSERT_EQ(::read(ends[0], &begun, 1), 1);
    std::this_thread::sleep_for(std::chrono::microseconds(rng() % 40'000));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ::close(ends[0]);
    ::close(ends[1]);
    if (read_latest(save) != tag) ++interrupted;
    const LatestCheckpoint latest = open_latest_valid(save);
    EXPECT_TRUE(latest.skipped.empty());
    expect_items(latest.reader, list, ds::run_seed());
  }
  EXPECT_GT(interrupted, 0) << "no kill hit a save";
}

}  // namespace
}  // namespace ds::test
