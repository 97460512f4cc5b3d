// What goes wrong below a queue, at each call in turn: the error is said with file, place and
// reason, nothing hangs, what is left works, and no memory is lost.
#include <gmock/gmock.h>

#include <cerrno>
#include <cstring>

#include "device/device.h"
#include "io/engine.h"
#include "io/file_array.h"
#include "unit/io/faulty_backend.h"
#include "unit/io/support.h"

namespace ds::io::test {
namespace {

using ::testing::HasSubstr;

class IoFaults : public ::testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override {
    if (!usable(GetParam())) GTEST_SKIP() << "this system does not allow it";
    std::mt19937_64 rng(7);
    fill_random(content_, rng);
    File(path_, Access::kCreate).write_at(0, content_);
  }
  EngineOptions options() const {
    EngineOptions out{{.depth = 3, .block_bytes = 8192, .threads = 2, .backend = GetParam()}, 2};
    out.queue.wrap = faulty(faults_);
    return out;
  }

  // Moves 100,000 bytes at 1,000, which are no whole pages, and back.
  void round_trip(Engine& engine, std::vector<std::byte>& back) {
    File file(path_, Access::kUpdate);
    const auto part = std::span(content_).subspan(1000, 100'000);
    engine.wait(engine.write(file, 1000, part));
    engine.wait(engine.read(file, 1000, back));
  }

  const std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  std::vector<std::byte> content_ = std::vector<std::byte>(150'000);
  TempFolder folder_;
  const fs::path path_ = folder_ / "file";
};

INSTANTIATE_TEST_SUITE_P(Ways, IoFaults,
                         ::testing::Values(BackendKind::kUring, BackendKind::kLibaio,
                                           BackendKind::kThreads),
                         [](const auto& given) {
                           std::string name(backend_name(given.param));
                           std::erase(name, '_');
                           return name;
                         });

TEST_P(IoFaults, EachPieceFailsInTurn) {
  Engine engine(options());
  for (const int errno_of_fault : {EIO, ENOSPC}) {
    int64_t failed = 0;
    for (int64_t piece = 0;; ++piece) {
      faults_->pieces = 0;
      faults_->fail_piece = piece;
      faults_->error = errno_of_fault;
      std::vector<std::byte> back(100'000);
      try {
        round_trip(engine, back);
        if (faults_->pieces <= piece) break;  // there are no more
        ADD_FAILURE() << "piece " << piece << " failed in silence";
      } catch (const Error& error) {
        ++failed;
        EXPECT_EQ(error.code(), Code::kIo);
        EXPECT_THAT(error.message(), HasSubstr(path_.string()));
        EXPECT_THAT(error.message(), HasSubstr(" bytes at "));
        EXPECT_THAT(error.message(), HasSubstr(std::strerror(errno_of_fault)));
      }
      // What failed once is over.
      round_trip(engine, back);
      EXPECT_EQ(std::memcmp(back.data(), content_.data() + 1000, back.size()), 0);
    }
    EXPECT_GT(failed, 20);
  }
}

// What a file system refuses, or a full kernel, is done in another way.
TEST_P(IoFaults, EachSubmissionIsRefusedInTurn) {
  Engine engine(options());
  for (const int errno_of_fault : {EAGAIN, EINVAL}) {
    for (int64_t submission = 0;; ++submission) {
      faults_->submissions = 0;
      faults_->fail_submission = submission;
      faults_->error = errno_of_fault;
      std::vector<std::byte> back(100'000);
      try {
        round_trip(engine, back);
        EXPECT_EQ(std::memcmp(back.data(), content_.data() + 1000, back.size()), 0) << submission;
      } catch (const Error& error) {
        // The last way there is, threads, has failed.
        EXPECT_EQ(error.code(), Code::kIo);
        EXPECT_THAT(error.message(), HasSubstr(std::strerror(errno_of_fault)));
      }
      if (faults_->submissions <= submission) break;
    }
  }
}

TEST_P(IoFaults, ShortTransfersAreGoneOnWith) {
  Engine engine(options());
  for (const size_t most : {size_t{1000}, size_t{512}, size_t{4096}, size_t{5000}}) {
    faults_->most_bytes = most;
    std::vector<std::byte> back(100'000);
    round_trip(engine, back);
    EXPECT_EQ(std::memcmp(back.data(), content_.data() + 1000, back.size()), 0) << most;
  }
}

TEST_P(IoFaults, AFileThatIsCutOrRemovedMeanwhile) {
  Engine engine(options());
  std::vector<std::byte> back(100'000);
  const File file(path_, Access::kRead);
  fs::resize_file(path_, 50'000);
  const Error cut = error_of([&] { engine.wait(engine.read(file, 0, back)); });
  EXPECT_EQ(cut.code(), Code::kCorrupt);
  EXPECT_THAT(cut.message(), HasSubstr("ends at byte 50000"));
  fs::remove(path_);
  engine.wait(engine.read(file, 0, std::span(back).first(50'000)));  // it is still there
  EXPECT_EQ(std::memcmp(back.data(), content_.data(), 50'000), 0);
}

// Arrays in files whose reads and writes fail one after another give all their memory back, and
// hold what they held where no write failed.
TEST_P(IoFaults, ArraysLoseNoMemoryAndNoNumbers) {
  const std::shared_ptr<Device> device = make_cpu_device();
  constexpr int64_t kElements = 50'000;
  int64_t failed = 0;
  for (int64_t piece = 0; piece < 60; piece += 5) {
    faults_->pieces = 0;
    faults_->fail_piece = -1;
    {
      FileArrayOptions given;
      given.folder = folder_ / "";
      given.part_bytes = 16384;
      given.queue = options().queue;
      const auto owner = std::make_shared<FileArrays>(given, device);
      const StoredArray array(owner->make("a", DType::kFloat32, kElements));
      {
        ArrayLease lease = array.map(0, kElements, ds::Access::kWrite);
        std::fill_n(lease.data().data<float>(), kElements, 1.5f);
        lease.close();
        array.flush();
      }
      faults_->pieces = 0;
      faults_->fail_piece = piece;
      try {
        array.for_parts(0, kElements, ds::Access::kReadWrite, [](const Tensor&, int64_t) {});
        array.flush();
      } catch (const Error& error) {
        ++failed;
        EXPECT_EQ(error.code(), Code::kIo);
      }
      faults_->fail_piece = -1;
      try {
        const ArrayLease all = array.map(0, kElements, ds::Access::kRead);
        for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(all.data().data<float>()[i], 1.5f) << i;
      } catch (const Error& error) {
        EXPECT_THAT(error.message(), HasSubstr("load a checkpoint"));
      }
    }
    EXPECT_EQ(device->account().now(MemoryTag::kIo), 0) << piece;
  }
  EXPECT_GT(failed, 3);
}

}  // namespace
}  // namespace ds::io::test
