// Reads and writes by path and descriptor: ranges and whole files, what is refused, and the checks
// that find bytes which are not what was written.
#include "io/session.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstring>

#include "unit/io/faulty_backend.h"
#include "unit/io/support.h"

namespace ds::io::test {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

class IoSession : public ::testing::Test {
 protected:
  static SessionOptions with(bool validate, bool checksum) {
    return {{{.block_bytes = 4096}, 2}, validate, checksum};
  }
  static void write(Session& session, const Place& place, const Bytes& bytes) {
    session.engine().wait(session.write(place, bytes, nullptr));
  }
  static Bytes read(Session& session, const Place& place, size_t size) {
    Bytes out(size);
    session.engine().wait(session.read(place, out, nullptr));
    return out;
  }
  static Bytes random(size_t size) {
    std::mt19937_64 rng(size);
    Bytes out(size);
    fill_random(out, rng);
    return out;
  }
  void change_a_byte(int64_t offset) {
    File file(path_, Access::kUpdate);
    std::byte one{};
    file.read_at(offset, {&one, 1});
    one ^= std::byte{0x10};
    file.write_at(offset, {&one, 1});
  }

  TempFolder folder_;
  const fs::path path_ = folder_ / "file";
};

TEST_F(IoSession, RangesAndWholeFiles) {
  Session session(with(false, false));
  const Bytes first = random(30'000), second = random(5'000);
  write(session, {.path = path_, .offset = 1000}, first);
  EXPECT_EQ(fs::file_size(path_), 31'000u);
  write(session, {.path = path_, .offset = 2000}, second);
  EXPECT_EQ(read(session, {.path = path_, .offset = 2000}, 5000), second);
  EXPECT_EQ(read(session, {.path = path_, .offset = 1000}, 1000),
            Bytes(first.begin(), first.begin() + 1000));
  EXPECT_EQ(read(session, {.path = path_}, 1000), Bytes(1000));

  write(session, {.path = path_, .whole = true}, second);
  EXPECT_EQ(fs::file_size(path_), 5000u);
  EXPECT_EQ(read(session, {.path = path_, .whole = true}, 5000), second);
  const Error wrong = error_of([&] { read(session, {.path = path_, .whole = true}, 4999); });
  EXPECT_EQ(wrong.code(), Code::kInvalidArgument);
  EXPECT_THAT(wrong.message(), HasSubstr("has 5000 bytes, and 4999"));
  write(session, {.path = path_, .whole = true}, {});
  EXPECT_EQ(fs::file_size(path_), 0u);
}

TEST_F(IoSession, DescriptorsStayTheCallers) {
  Session session(with(false, false));
  const Bytes bytes = random(20'000);
  const int both = ::open(path_.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(both, 0);
  fs::remove(path_);  // it has no name any more
  write(session, {.descriptor = both, .offset = 5000}, bytes);
  EXPECT_EQ(read(session, {.descriptor = both, .offset = 5000}, 20'000), bytes);
  write(session, {.descriptor = both, .whole = true}, bytes);
  EXPECT_EQ(read(session, {.descriptor = both, .whole = true}, 20'000), bytes);
  ASSERT_EQ(::close(both), 0) << "it is still open";

  const Error closed = error_of([&] { read(session, {.descriptor = both}, 1); });
  EXPECT_EQ(closed.code(), Code::kInvalidArgument);
  EXPECT_THAT(closed.message(), HasSubstr("is not open"));
  File(path_, Access::kCreate).write_at(0, bytes);
  const int append = ::open(path_.c_str(), O_WRONLY | O_APPEND);
  EXPECT_THAT(error_of([&] { write(session, {.descriptor = append}, bytes); }).message(),
              HasSubstr("appending"));
  EXPECT_THAT(error_of([&] { read(session, {.descriptor = append}, 1); }).message(),
              HasSubstr("not open for reading"));
  ::close(append);
}

TEST_F(IoSession, WhatIsNoFileIsRefused) {
  Session session(with(false, false));
  const Bytes one(1);
  EXPECT_EQ(error_of([&] { read(session, {.path = path_}, 1); }).code(), Code::kNotFound);
  EXPECT_THAT(error_of([&] { read(session, {.path = folder_ / ""}, 1); }).message(),
              HasSubstr("is a folder"));
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  for (const bool reads : {true, false}) {
    const Error error = error_of([&] {
      if (reads) {
        read(session, {.path = path_}, 1);
      } else {
        write(session, {.path = path_}, one);
      }
    });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("a pipe"));
  }
  EXPECT_EQ(error_of([&] { write(session, {.path = folder_ / "f", .offset = -1}, one); }).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] {
              write(session, {.path = folder_ / "f", .offset = 1, .whole = true}, one);
            }).code(),
            Code::kInvalidArgument);
  const Error far =
      error_of([&] { write(session, {.path = folder_ / "f", .offset = INT64_MAX}, one); });
  EXPECT_EQ(far.code(), Code::kInvalidArgument);
}

TEST_F(IoSession, ValidationFindsWhatWasMovedWrongly) {
  const Bytes bytes = random(30'000);
  Session good(with(true, false));
  write(good, {.path = path_, .offset = 4096}, bytes);
  EXPECT_EQ(read(good, {.path = path_, .offset = 4096}, 30'000), bytes);

  SessionOptions options = with(true, false);
  const auto faults = std::make_shared<Faults>();
  faults->flip_writes = true;
  options.engine.queue.wrap = faulty(faults);
  Session bad(options);
  const Error error = error_of([&] { write(bad, {.path = path_, .offset = 4096}, bytes); });
  EXPECT_EQ(error.code(), Code::kCorrupt);
  EXPECT_THAT(error.message(), HasSubstr("byte 4096 is not what was moved"));
}

TEST_F(IoSession, ChecksumsFindWhatHasChangedSince) {
  Session session(with(false, true));
  const Bytes bytes = random(3'000'000);
  write(session, {.path = path_, .offset = 500}, bytes);
  EXPECT_EQ(read(session, {.path = path_, .offset = 500}, bytes.size()), bytes);
  change_a_byte(2'000'000);
  const Error error =
      error_of([&] { read(session, {.path = path_, .offset = 500}, bytes.size()); });
  EXPECT_EQ(error.code(), Code::kCorrupt);
  EXPECT_THAT(error.message(), HasSubstr("1048576 bytes at 1049076 are not what was written"));
  // By a descriptor it is the same file.
  const int descriptor = ::open(path_.c_str(), O_RDONLY);
  EXPECT_EQ(error_of([&] { read(session, {.descriptor = descriptor}, 3'000'000); }).code(),
            Code::kCorrupt);
  ::close(descriptor);
  // Elsewhere it is as it was, and what is written anew is known anew.
  read(session, {.path = path_, .offset = 0}, 1'500'000 - 500'000);
  write(session, {.path = path_, .offset = 2'000'000}, random(10));
  read(session, {.path = path_, .offset = 0}, 3'000'500);
  change_a_byte(2'000'005);
  EXPECT_EQ(error_of([&] { read(session, {.path = path_, .offset = 0}, 3'000'500); }).code(),
            Code::kCorrupt);
  write(session, {.path = path_, .whole = true}, random(100));
  EXPECT_EQ(read(session, {.path = path_, .whole = true}, 100), random(100));
}

TEST(RangeChecksumsTest, KnowNothingOfAFileThatWasMadeAnew) {
  const TempFolder folder;
  const Bytes bytes(5000, std::byte{1});
  RangeChecksums sums;
  {
    const File file(folder / "f", Access::kCreate);
    sums.keep(file, 0, 5000, RangeChecksums::of(bytes));
    EXPECT_EQ(sums.check(file, 0, bytes), 5000);
    EXPECT_EQ(sums.check(file, 1, std::span(bytes).subspan(1)), 0);
    sums.forget(file, 4999, 1);
    EXPECT_EQ(sums.check(file, 0, bytes), 0);
    sums.keep(file, 0, 5000, RangeChecksums::of(bytes));
  }
  fs::remove(folder / "f");
  const File again(folder / "f", Access::kCreate);
  EXPECT_EQ(sums.check(again, 0, Bytes(5000)), 0);
}

}  // namespace
}  // namespace ds::io::test
