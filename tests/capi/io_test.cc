// File I/O of ds.h: every way to move a range byte for byte, options that come back, waits that
// count, errors with their place, threads that share a handle, and memory that stays in place.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "base/text.h"
#include "capi/world.h"
#include "ds.hpp"

namespace capi_test {
namespace {

using libds::Error;
using libds::Io;
using libds::Tensor;
using ::testing::HasSubstr;
using Bytes = std::vector<uint8_t>;

Bytes random_bytes(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  Bytes out(n);
  for (uint8_t& b : out) b = static_cast<uint8_t>(rng());
  return out;
}
Tensor tensor_of(const Bytes& bytes) { return Tensor::from(bytes); }
Bytes bytes_of(const Tensor& tensor) {
  Bytes out(static_cast<size_t>(info_of(tensor.get()).bytes));
  EXPECT_DS_OK(ds_tensor_read(tensor.get(), out.data(), static_cast<int64_t>(out.size())));
  return out;
}
Bytes bytes_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}
template <class Fn>
Error error_of(const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(DS_OK, "");
}

// What the options of DeepSpeed's handle do there: blocks of 1 KiB, two at a time, 4 KiB and more,
// two threads, with and without single_submit and overlap_events.
class IoWays : public ::testing::TestWithParam<std::tuple<bool, bool, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Every, IoWays,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool(),
                                            ::testing::Values("auto", "io_uring", "libaio",
                                                              "threads")));

TEST_P(IoWays, MoveEveryByte) {
  const auto [single, overlap, backend] = GetParam();
  const std::string options = ds::str_cat(
      R"({"block_size": 1024, "queue_depth": 2, "intra_op_parallelism": 2, "single_submit": )",
      single ? "true" : "false", R"(, "overlap_events": )", overlap ? "true" : "false",
      R"(, "backend": ")", backend, "\"}");
  ds_io* raw = nullptr;
  const ds_status status = ds_io_create(options.c_str(), &raw);
  if (status == DS_ERR_UNSUPPORTED) GTEST_SKIP() << ds_last_error_message();
  ASSERT_DS_OK(status);
  const Io io(raw);
  const ds_io_info info = io.info();
  EXPECT_EQ(info.block_size, 1024);
  EXPECT_EQ(info.queue_depth, 2);
  EXPECT_EQ(info.intra_op_parallelism, 2);
  EXPECT_EQ(info.single_submit, single ? 1 : 0);
  EXPECT_EQ(info.overlap_events, overlap ? 1 : 0);
  EXPECT_EQ(info.alignment % 512, 0);
  EXPECT_GE(info.backend, DS_IO_URING);
  EXPECT_LE(info.backend, DS_IO_THREADS);

  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  for (const size_t size : {size_t{4096}, size_t{1000}, size_t{70'001}}) {
    const Bytes bytes = random_bytes(size, 1);
    const Tensor out = tensor_of(bytes), back(DS_UINT8, {static_cast<int64_t>(size)});
    // Whole and blocking; then started, at an offset, by path and by descriptor.
    io.write_file(path, out);
    EXPECT_EQ(bytes_in(path), bytes);
    io.read_file(path, back);
    EXPECT_EQ(bytes_of(back), bytes);
    const int64_t first = io.start_write(path, out, 5000);
    EXPECT_EQ(io.wait(first), 1);
    const int descriptor = ::open(path.c_str(), O_RDWR);
    ds_io_transfer transfer = DS_IO_TRANSFER_INIT;
    transfer.descriptor = descriptor;
    transfer.tensor = back.get();
    transfer.offset = 5000;
    io.start(transfer);
    io.start_write(path, out, 200'000);
    EXPECT_EQ(io.wait(), 2);
    EXPECT_EQ(bytes_of(back), bytes);
    // Plain memory.
    Bytes plain(size);
    transfer.tensor = nullptr;
    transfer.data = plain.data();
    transfer.size = static_cast<int64_t>(size);
    transfer.offset = 200'000;
    io.run(transfer);
    EXPECT_EQ(plain, bytes);
    EXPECT_EQ(::close(descriptor), 0);
  }
}

TEST(CapiIo, OptionsAreCheckedByName) {
  const auto error = [](const char* options) { return error_of([&] { Io io(options); }); };
  EXPECT_THAT(error(R"({"blok_size": 1})").what(), HasSubstr("block_size"));
  EXPECT_THAT(error(R"({"block_size": 0})").what(), HasSubstr("block_size"));
  EXPECT_THAT(error(R"({"queue_depth": 5000})").what(), HasSubstr("queue_depth"));
  EXPECT_THAT(error(R"({"intra_op_parallelism": -1})").what(), HasSubstr("intra_op_parallelism"));
  EXPECT_THAT(error(R"({"backend": "posix"})").what(), HasSubstr("libaio"));
  EXPECT_THAT(error(R"({"overlap_events": 3})").what(), HasSubstr("overlap_events"));
  EXPECT_THAT(error("[]").what(), HasSubstr("object"));
  const Error gds = error(R"({"use_gds": true})");
  EXPECT_EQ(gds.status(), DS_ERR_UNSUPPORTED);
  EXPECT_THAT(gds.what(), HasSubstr("GPUDirect Storage"));
  EXPECT_EQ(Io().info().queue_depth, 8);
  EXPECT_EQ(Io().info().block_size, 1 << 20);
}

TEST(CapiIo, ReportNamesTheBackend) {
  char* report = nullptr;
  ASSERT_DS_OK(ds_report(&report));
  const std::string text = take(report);
  EXPECT_THAT(text, HasSubstr("\"file_io\""));
}

TEST(CapiIo, RefusesWhatIsNoTransfer) {
  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  const Io io;
  const Tensor tensor(DS_FLOAT32, {4});
  ds_io_transfer good = Io::transfer_of(path, tensor, 0);
  good.write = 1;
  io.run(good);
  good.write = 0;
  io.run(good);
  const auto refused = [&](auto change) {
    ds_io_transfer bad = good;
    change(bad);
    const Error run = error_of([&] { io.run(bad); });
    EXPECT_EQ(ds_io_start(io.get(), &bad, nullptr), run.status());
    return run;
  };
  float numbers[4];
  EXPECT_THAT(refused([&](auto& t) { t.data = numbers; }).what(), HasSubstr("both"));
  EXPECT_THAT(refused([](auto& t) { t.offset = -1; }).what(), HasSubstr("offset is -1"));
  EXPECT_THAT(refused([](auto& t) { t.reserved = 1; }).what(), HasSubstr("reserved"));
  EXPECT_THAT(refused([](auto& t) { t.path = ""; }).what(), HasSubstr("path"));
  EXPECT_THAT(refused([](auto& t) { t.struct_size = 3; }).what(), HasSubstr("struct_size"));
  EXPECT_THAT(refused([](auto& t) {
                t.tensor = nullptr;
                t.size = -1;
              }).what(),
              HasSubstr("size is -1"));
  EXPECT_THAT(refused([](auto& t) {
                t.tensor = nullptr;
                t.size = 1;
              }).what(),
              HasSubstr("data is NULL"));
  EXPECT_THAT(refused([](auto& t) {
                t.path = nullptr;
                t.descriptor = -5;
              }).what(),
              HasSubstr("descriptor -5 is not open"));
  EXPECT_THAT(refused([](auto& t) { t.whole_file = t.offset = 1; }).what(), HasSubstr("offset 0"));
  const std::string missing = folder.file("missing");
  const Error none = refused([&](auto& t) { t.path = missing.c_str(); });
  EXPECT_EQ(none.status(), DS_ERR_NOT_FOUND);
  EXPECT_THAT(none.what(), HasSubstr(missing));
  // A tensor with holes.
  float six[6] = {};
  const Tensor holes = Tensor::wrap(six, DS_FLOAT32, {3}, {2});
  EXPECT_THAT(refused([&](auto& t) { t.tensor = holes.get(); }).what(), HasSubstr("packed"));
  EXPECT_EQ(io.wait(), 0) << "nothing was started";
  EXPECT_EQ(ds_io_wait(io.get(), 12345, nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_io_wait(io.get(), -1, nullptr), DS_ERR_INVALID_ARGUMENT);
}

TEST(CapiIo, WhatFailsLaterIsSaidByTheWait) {
  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  const Io io;
  const Tensor small(DS_UINT8, {1000}), large(DS_UINT8, {2000});
  io.write_file(path, small);
  const int64_t good = io.start_read(path, small);
  const int64_t bad = io.start_read(path, large);
  const Error error = error_of([&] { io.wait(); });
  EXPECT_EQ(error.status(), DS_ERR_CORRUPT);
  EXPECT_THAT(error.what(), HasSubstr(path));
  EXPECT_THAT(error.what(), HasSubstr("ends at byte 1000"));
  EXPECT_TRUE(io.done(good));
  EXPECT_TRUE(io.done(bad));
  EXPECT_EQ(io.wait(bad), 0) << "a failure is reported once";
  EXPECT_EQ(io.cancel(), 0);
}

// The memory of a tensor lives as long as its transfer; handles may go at any moment.
TEST(CapiIo, HandlesMayGoBeforeTheirTransfers) {
  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  const Bytes bytes = random_bytes(3'000'000, 5);
  {
    Io io;
    {
      const Tensor tensor = tensor_of(bytes);
      io.start_write(path, tensor);
    }
    EXPECT_EQ(io.wait(), 1);
    const Tensor back(DS_UINT8, {3'000'000});
    io.start_read(path, back);
  }
  EXPECT_EQ(bytes_in(path), bytes);
}

TEST(CapiIo, ThreadsShareAHandle) {
  const TemporaryFolder folder;
  const Io io(R"({"intra_op_parallelism": 2, "block_size": 4096})");
  std::atomic<int> done{0};
  const auto work = [&](uint32_t number) {
    const std::string path = folder.file(std::to_string(number));
    const Bytes bytes = random_bytes(50'000, number);
    const Tensor out = tensor_of(bytes), back(DS_UINT8, {50'000});
    for (int i = 0; i < 10; ++i) {
      io.write(path, out, i * 50'000);
      io.wait(io.start_read(path, back, i * 50'000));
      if (bytes_of(back) == bytes) ++done;
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 3; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 30);
}

TEST(CapiIo, AForkedChildNeedsOneOfItsOwn) {
  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  const Io io;
  const Tensor tensor(DS_UINT8, {10'000});
  io.write_file(path, tensor);
  const pid_t child = ::fork();
  if (child == 0) {
    const ds_io_transfer transfer = Io::transfer_of(path, tensor, 0);
    ds_io* own = nullptr;
    int wrong = 0;
    wrong += ds_io_run(io.get(), &transfer) != DS_ERR_STATE;
    wrong += ds_io_wait(io.get(), 0, nullptr) != DS_ERR_STATE;
    wrong += ds_io_create(nullptr, &own) != DS_OK || ds_io_run(own, &transfer) != DS_OK;
    ds_io_destroy(own);
    ::_exit(wrong);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  io.read_file(path, tensor);
}

TEST(CapiIo, ChecksumsAndValidation) {
  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  const Io io(R"({"checksum": true, "validate": true})");
  EXPECT_EQ(io.info().checksum, 1);
  EXPECT_EQ(io.info().validate, 1);
  const Tensor tensor = tensor_of(random_bytes(10'000, 3));
  io.write_file(path, tensor);
  io.read_file(path, tensor);
  const int descriptor = ::open(path.c_str(), O_WRONLY);
  const uint8_t other = static_cast<uint8_t>(bytes_in(path)[7000] ^ 1u);
  ASSERT_EQ(::pwrite(descriptor, &other, 1, 7000), 1);
  ::close(descriptor);
  const Error error = error_of([&] { io.read_file(path, tensor); });
  EXPECT_EQ(error.status(), DS_ERR_CORRUPT);
  EXPECT_THAT(error.what(), HasSubstr("checksum"));
  Io().read_file(path, tensor);  // another handle knows nothing of it
}

TEST(CapiPinned, TensorsAndPointers) {
  const Tensor tensor = Tensor::pinned(DS_FLOAT32, {300, 2000});
  EXPECT_TRUE(tensor.is_pinned());
  EXPECT_EQ(bytes_of(tensor), Bytes(2'400'000));
  EXPECT_FALSE(Tensor(DS_FLOAT32, {3}).is_pinned());
  const ds_tensor_info info = info_of(tensor.get());
  ds_bool pinned = 0;
  ASSERT_DS_OK(ds_pinned_contains(static_cast<char*>(info.data) + 100, 1000, &pinned));
  EXPECT_EQ(pinned, 1);
  ASSERT_DS_OK(ds_pinned_contains(&pinned, 4, &pinned));
  EXPECT_EQ(pinned, 0);
  // Files come and go as with any other memory.
  const TemporaryFolder folder;
  const Bytes bytes = random_bytes(2'400'000, 9);
  ASSERT_DS_OK(ds_tensor_write(tensor.get(), bytes.data(), 2'400'000));
  const Io io;
  io.write_file(folder.file("f"), tensor);
  EXPECT_EQ(bytes_in(folder.file("f")), bytes);
  const Tensor back = Tensor::pinned(DS_FLOAT32, {600'000});
  io.read_file(folder.file("f"), back);
  EXPECT_EQ(bytes_of(back), bytes);
  // A view keeps the memory, and is pinned too; its memory is not the caller's to end.
  DLManagedTensorVersioned* exported = nullptr;
  ASSERT_DS_OK(ds_tensor_to_dlpack(tensor.get(), nullptr, &exported));
  ds_tensor* raw = nullptr;
  ASSERT_DS_OK(ds_tensor_from_dlpack(exported, nullptr, &raw));
  EXPECT_TRUE(Tensor(raw).is_pinned());
  ds_bool known = 1;
  ASSERT_DS_OK(ds_pinned_free(info.data, &known));
  EXPECT_EQ(known, 0);

  const libds::PinnedMemory memory(10'000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 4096, 0u);
  EXPECT_TRUE(libds::PinnedMemory::contains(memory.data(), 10'000));
  EXPECT_FALSE(libds::PinnedMemory::contains(&pinned, 1));
  void* plain = nullptr;
  ASSERT_DS_OK(ds_pinned_allocate(5000, &plain));
  ASSERT_DS_OK(ds_pinned_free(plain, &known));
  EXPECT_EQ(known, 1);
  ASSERT_DS_OK(ds_pinned_free(plain, &known));
  EXPECT_EQ(known, 0);
  EXPECT_EQ(ds_pinned_allocate(0, &plain), DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_pinned_allocate(int64_t{1} << 50, &plain), DS_ERR_OUT_OF_MEMORY);
  const int64_t shape[] = {0, 4};
  ASSERT_DS_OK(ds_pinned_tensor(DS_INT8, shape, 2, &raw));
  EXPECT_EQ(info_of(raw).elements, 0);
  ds_tensor_destroy(raw);
}

}  // namespace
}  // namespace capi_test
