// Arrays in files against arrays in memory: whatever is mapped, fetched ahead and written behind,
// each element holds what was last written to it.
#include "io/file_array.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "device/device.h"
#include "fresh_seed.h"
#include "unit/io/support.h"

namespace ds::io::test {
namespace {

using ::testing::HasSubstr;

struct FileWay {
  const char* name;
  bool read_ahead;
  bool write_behind;
  BackendKind backend;
  int parallelism = 1;
  const char* parent = nullptr;
};
void PrintTo(const FileWay& way, std::ostream* out) { *out << way.name; }

class FileArrayTest : public ::testing::TestWithParam<FileWay> {
 protected:
  static fs::path parent() {
    return GetParam().parent != nullptr ? fs::path(GetParam().parent) : fs::temp_directory_path();
  }
  std::shared_ptr<FileArrays> make(int64_t part_bytes = 1 << 16) {
    FileArrayOptions options;
    options.folder = folder_ / "";
    options.part_bytes = part_bytes;
    options.read_ahead = GetParam().read_ahead;
    options.write_behind = GetParam().write_behind;
    options.queue = {.depth = 4, .block_bytes = 16384, .threads = 2, .backend = GetParam().backend};
    options.parallelism = GetParam().parallelism;
    return std::make_shared<FileArrays>(options, device_);
  }

  void SetUp() override {
    if (!usable(GetParam().backend)) GTEST_SKIP() << "this system does not allow it";
  }

  TempFolder folder_{parent()};
  const std::shared_ptr<Device> device_ = make_cpu_device();
};

INSTANTIATE_TEST_SUITE_P(Ways, FileArrayTest,
                         ::testing::Values(FileWay{"Overlapped", true, true, BackendKind::kUring},
                                           FileWay{"Libaio", true, true, BackendKind::kLibaio},
                                           FileWay{"Threads", true, true, BackendKind::kThreads},
                                           FileWay{"Parallel", true, true, BackendKind::kBest, 3},
                                           FileWay{"ReadAhead", true, false, BackendKind::kBest},
                                           FileWay{"OneByOne", false, false, BackendKind::kBest},
                                           FileWay{"SharedMemory", true, true, BackendKind::kBest,
                                                   1, "/dev/shm"}),
                         [](const auto& given) { return std::string(given.param.name); });

void fill(const Tensor& memory, std::mt19937_64& rng) {
  fill_random({static_cast<std::byte*>(memory.raw()), static_cast<size_t>(memory.bytes())}, rng);
}

TEST_P(FileArrayTest, HoldsWhatWasWrittenToEachElement) {
  SCOPED_TRACE("DS_TEST_SEED=" + std::to_string(ds::run_seed()));
  std::mt19937_64 rng(ds::run_seed());
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
    const int64_t item = dtype_size(dtype);
    const auto elements = static_cast<int64_t>(1 + rng() % 60'000);
    const StoredArray array(make()->make("a", dtype, elements));
    const auto bytes = static_cast<size_t>(elements * item);
    std::vector<std::byte> expected(bytes);
    for (int round = 0; round < 150; ++round) {
      auto begin = static_cast<int64_t>(rng() % static_cast<uint64_t>(elements));
      auto end = begin + 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(elements - begin));
      // Beginnings on pages and in the middle of them, and ranges within one.
      if (round % 3 == 0) begin = begin * item / kAlignment * kAlignment / item;
      if (round % 5 == 0) end = std::min(end, begin + 5);
      if (round % 2 == 0) array.prefetch(begin, end);
      const auto access = static_cast<ds::Access>(rng() % 3);
      ArrayLease lease = array.map(begin, end, access);
      std::byte* const there = expected.data() + begin * item;
      const auto size = static_cast<size_t>((end - begin) * item);
      ASSERT_EQ(lease.data().elements(), end - begin);
      if (access != ds::Access::kWrite) {
        ASSERT_EQ(std::memcmp(lease.data().raw(), there, size), 0)
            << "round " << round << ": " << begin << " to " << end;
      }
      if (access == ds::Access::kRead) continue;
      fill(lease.data(), rng);
      if (round % 7 == 0) continue;  // gives the write up
      std::memcpy(there, lease.data().raw(), size);
      lease.close();
      if (round % 11 == 0) array.flush();
    }
    array.flush();
    const ArrayLease all = array.map(0, elements, ds::Access::kRead);
    EXPECT_EQ(std::memcmp(all.data().raw(), expected.data(), bytes), 0) << dtype_name(dtype);
  }
}

// As an update goes through: the next part is fetched while one is worked on and the last is
// written.
TEST_P(FileArrayTest, PartsFollowEachOther) {
  SCOPED_TRACE("DS_TEST_SEED=" + std::to_string(ds::run_seed()));
  constexpr int64_t kElements = 300'000;
  const auto owner = make();
  const StoredArray array(owner->make("a", DType::kFloat32, kElements));
  for (int step = 1; step <= 3; ++step) {
    array.for_parts(100, kElements - 7, ds::Access::kReadWrite,
                    [&](const Tensor& part, int64_t at) {
                      float* const x = part.data<float>();
                      for (int64_t i = 0; i < part.elements(); ++i)
                        x[i] += static_cast<float>((at + i) % 97);
                    });
    array.flush();
  }
  const ArrayLease all = array.map(0, kElements, ds::Access::kRead);
  const float* const x = all.data().data<float>();
  for (int64_t i = 0; i < kElements; ++i) {
    const bool inside = i >= 100 && i < kElements - 7;
    ASSERT_EQ(x[i], inside ? static_cast<float>(3 * ((i - 100) % 97)) : 0.0f) << i;
  }
}

TEST_P(FileArrayTest, MemoryIsThatOfAFewParts) {
  constexpr int64_t kPart = 1 << 18, kElements = 20 * kPart / 4;
  const auto owner = make(kPart);
  const StoredArray array(owner->make("a", DType::kFloat32, kElements));
  for (int step = 0; step < 2; ++step) {
    array.for_parts(0, kElements, ds::Access::kReadWrite, [](const Tensor&, int64_t) {});
  }
  array.flush();
  // Mapped, fetched (two), being written, and the one that comes before it is over.
  EXPECT_LE(device_->account().peak(MemoryTag::kIo), 5 * (kPart + 4 * kAlignment));
}

TEST_P(FileArrayTest, FilesHaveNoNames) {
  const auto owner = make();
  const StoredArray array(owner->make("a", DType::kFloat32, 5000));
  array.map(0, 5000, ds::Access::kWrite).close();
  EXPECT_TRUE(fs::is_empty(folder_ / ""));
}

TEST_P(FileArrayTest, MemoryOutlivesItsStore) {
  Tensor kept;
  {
    const StoredArray array(make()->make("a", DType::kFloat32, 5000));
    ArrayLease lease = array.map(10, 4000, ds::Access::kWrite);
    lease.data().data<float>()[5] = 3.5f;
    kept = lease.data();
    lease.close();
  }
  EXPECT_EQ(kept.data<float>()[5], 3.5f);
}

// Beyond the limit nothing can be written any more, as on a full disk or a broken one.
TEST_P(FileArrayTest, AFailedWriteIsSaidAndItsRangeIsNotReadUntilItIsWritten) {
  const auto owner = make();
  const StoredArray array(owner->make("moments", DType::kFloat32, 100'000));
  const auto write = [&](int64_t begin, int64_t end, float value) {
    ArrayLease lease = array.map(begin, end, ds::Access::kWrite);
    std::fill_n(lease.data().data<float>(), end - begin, value);
    lease.close();
    array.flush();
  };
  write(0, 100'000, 1);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 200'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Error error = error_of([&] { write(60'000, 70'000, 2); });
  EXPECT_NO_THROW(write(0, 1000, 3));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.message(), HasSubstr("moments"));
  EXPECT_THAT(error.message(), HasSubstr(std::strerror(EFBIG)));

  const Error lost = error_of([&] { array.map(65'000, 80'000, ds::Access::kRead); });
  EXPECT_THAT(lost.message(), HasSubstr("load a checkpoint"));
  EXPECT_EQ(array.map(70'000, 80'000, ds::Access::kRead).data().data<float>()[0], 1);
  EXPECT_EQ(array.map(0, 60'000, ds::Access::kRead).data().data<float>()[999], 3);
  write(60'000, 70'000, 4);
  EXPECT_EQ(array.map(65'000, 80'000, ds::Access::kRead).data().data<float>()[4'999], 4);
}

// Ranges that were fetched in vain, while the file could not be read, are read when they are
// mapped.
TEST_P(FileArrayTest, WhatWasFetchedInVainIsReadAgain) {
  constexpr int64_t kPart = 1024, kElements = 5 * kPart;
  const fs::path path = folder_ / "array";
  const std::vector<float> values(kElements, 2.5f);
  const auto bytes = std::as_bytes(std::span(values));
  { File(path, io::Access::kCreate).write_at(0, bytes); }
  const auto owner = make();
  const StoredArray array(std::make_shared<FileArray>(owner, File(path, io::Access::kUpdate),
                                                      DType::kFloat32, kElements));
  fs::resize_file(path, 0);
  for (int64_t part = 0; part < 5; ++part) {
    array.prefetch(part * kPart, (part + 1) * kPart);  // the first ones give way
  }
  { File(path, io::Access::kUpdate).write_at(0, bytes); }
  for (const int64_t part : {0, 1, 2}) {
    const ArrayLease lease = array.map(part * kPart, (part + 1) * kPart, ds::Access::kRead);
    for (int64_t i = 0; i < kPart; ++i) ASSERT_EQ(lease.data().data<float>()[i], 2.5f) << part;
  }
  // One whose read failed and that is then written, too.
  ArrayLease lease = array.map(4 * kPart, 5 * kPart, ds::Access::kWrite);
  std::fill_n(lease.data().data<float>(), kPart, 4.0f);
  EXPECT_NO_THROW(lease.close());
  EXPECT_EQ(array.map(4 * kPart, 5 * kPart, ds::Access::kRead).data().data<float>()[7], 4.0f);
}

TEST(FileArrays, NeedAFolder) {
  FileArrayOptions options;
  options.folder = "/nowhere/at all";
  const Error error = error_of([&] { FileArrays(options, make_cpu_device()); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.message(), HasSubstr("/nowhere/at all"));
}

TEST(FileArrays, ADiskWithoutRoomIsAnError) {
  const TempFolder folder("/dev/shm");
  FileArrayOptions options;
  options.folder = folder / "";
  const auto owner = std::make_shared<FileArrays>(options, make_cpu_device());
  const Error error = error_of([&] { owner->make("masters", DType::kFloat32, int64_t{1} << 44); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.message(), HasSubstr("masters"));
  EXPECT_TRUE(fs::is_empty(folder / ""));
}

}  // namespace
}  // namespace ds::io::test
