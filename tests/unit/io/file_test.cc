// Files for asynchronous I/O: what opens, what is reserved, and what errors say.
#include "io/file.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

#include "unit/io/support.h"

namespace ds::io::test {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(IoFile, KeepsOrEmptiesWhatIsThere) {
  const TempFolder folder;
  const fs::path path = folder / "f";
  {
    File file(path, Access::kCreate);
    file.write_at(3, bytes_of("abcdef"));
    file.sync();
    file.close();
    EXPECT_FALSE(file.is_open());
  }
  {
    File file(path, Access::kUpdate);
    EXPECT_EQ(file.size(), 9);
    file.write_at(4, bytes_of("XY"));
  }
  std::string text(9, '?');
  File(path, Access::kRead).read_at(0, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, std::string("\0\0\0aXYdef", 9));
  EXPECT_EQ(File(path, Access::kCreate).size(), 0);
  EXPECT_EQ(File(folder / "new", Access::kUpdate).size(), 0);
}

TEST(IoFile, ReservesRoomThatReadsAsZero) {
  const TempFolder folder;
  File file(folder / "f", Access::kCreate);
  file.reserve(0, 0);
  EXPECT_EQ(file.size(), 0);
  file.reserve(4096, 8192);
  if (file.size() == 0) GTEST_SKIP() << "this file system reserves nothing";
  EXPECT_EQ(file.size(), 12288);
  std::string text(100, '?');
  file.read_at(8000, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, std::string(100, '\0'));
}

TEST(IoFile, UnnamedFilesAreNowhereAndGoPastTheCacheAsOthersDo) {
  const TempFolder folder;
  const fs::path path = folder / "state";
  File file = File::unnamed(path);
  EXPECT_TRUE(fs::is_empty(path.parent_path()));
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.direct(), File(folder / "named", Access::kNew).direct());
  const std::string text(5000, 'x');
  file.write_at(3, bytes_of(text));
  std::string back(5000, '?');
  file.read_at(3, std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, text);
  EXPECT_EQ(file.size(), 5003);
  EXPECT_THROW(File::unnamed(folder / "nowhere" / "state"), Error);
}

TEST(IoFile, ErrorsNameTheFileAndThePlace) {
  const TempFolder folder;
  const Error missing = error_of([&] { File(folder / "none", Access::kRead); });
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_NE(missing.message().find("none"), std::string::npos);
  EXPECT_EQ(error_of([&] { File(folder / "a/b", Access::kCreate); }).code(), Code::kNotFound);
  EXPECT_EQ(error_of([&] { File(fs::path(std::string("a\0b", 3)), Access::kRead); }).code(),
            Code::kInvalidArgument);

  File(folder / "f", Access::kCreate).write_at(0, bytes_of("0123456789"));
  File file(folder / "f", Access::kRead);
  std::string text(8, '?');
  const Error end = error_of([&] { file.read_at(6, std::as_writable_bytes(std::span(text))); });
  EXPECT_EQ(end.code(), Code::kCorrupt);
  EXPECT_NE(end.message().find("has 10 bytes, but 4 bytes at 10"), std::string::npos)
      << end.message();
  const Error write = error_of([&] { file.write_at(7, bytes_of("x")); });
  EXPECT_EQ(write.code(), Code::kIo);
  EXPECT_NE(write.message().find("(1 bytes at 7)"), std::string::npos) << write.message();
}

TEST(IoFile, ReservingTooMuchSaysHowMuch) {
  const TempFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit size{10'000, 10'000};
    ::setrlimit(RLIMIT_FSIZE, &size);
    int code = 1;
    try {
      File(folder / "f", Access::kCreate).reserve(4096, 8192);
    } catch (const Error& error) {
      const bool named = error.message().find("8192 bytes at 4096") != std::string::npos;
      code = error.code() == Code::kIo && named ? 0 : 2;
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ds::io::test
