// Files: exact reads and writes, durable replacement, and errors that name path and reason.
#include "base/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "base/replacement_file.h"
#include "unit/base/expect_error.h"
#include "unit/base/text_bytes.h"

namespace ds {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;

class Files : public ::testing::Test {
 protected:
  Files() {
    std::string name = (fs::temp_directory_path() / "ds_file_test.XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~Files() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

  fs::path folder_;
};

std::string read(const File& file, int64_t offset, size_t n) {
  std::string text(n, '?');
  file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST_F(Files, WritesAndReadsAtOffsets) {
  File file(folder_ / "a", File::Mode::kCreate);
  EXPECT_TRUE(file.is_open());
  file.write_at(4, bytes_of("tail"));
  file.write_at(0, bytes_of("head"));
  EXPECT_EQ(file.size(), 8);
  EXPECT_EQ(read(file, 2, 4), "adta");
  EXPECT_EQ(read(file, 8, 0), "");
  file.sync();
  file.close();
  EXPECT_FALSE(file.is_open());
  file.close();  // again: nothing to do
  EXPECT_EQ(read_text_file(folder_ / "a"), "headtail");
}

TEST_F(Files, CreateEmptiesAndAppendKeeps) {
  File(folder_ / "a", File::Mode::kCreate).append("one");
  File(folder_ / "a", File::Mode::kAppend).append("two");
  EXPECT_EQ(read_text_file(folder_ / "a"), "onetwo");
  File(folder_ / "a", File::Mode::kCreate).append("3");
  EXPECT_EQ(read_text_file(folder_ / "a"), "3");
}

TEST_F(Files, MovesKeepOneOwner) {
  File a(folder_ / "a", File::Mode::kCreate);
  File b(std::move(a));
  EXPECT_FALSE(a.is_open());  // NOLINT: the state after a move is part of the contract
  File c;
  c = std::move(b);
  c.append("x");
  EXPECT_EQ(c.size(), 1);
  EXPECT_EQ(c.path(), folder_ / "a");
}

TEST_F(Files, MissingFilesAreNotFound) {
  const fs::path path = folder_ / "absent";
  for (const auto& open : std::vector<std::function<void()>>{
           [&] { File(path, File::Mode::kRead); }, [&] { File(path, File::Mode::kReadRegular); },
           [&] { read_text_file(path); }}) {
    expect_error(Code::kNotFound, {"cannot open", path.string(), "No such file or directory"},
                 open);
  }
  expect_error(Code::kNotFound, {"cannot write", "No such file"},
               [&] { File(folder_ / "no" / "file", File::Mode::kCreate); });
}

TEST_F(Files, ErrorsNamePathAndReason) {
  expect_error(Code::kIo, {"cannot write", folder_.string(), "Is a directory"},
               [&] { File(folder_, File::Mode::kCreate); });
  expect_error(Code::kIo, {folder_.string(), "not a regular file"},
               [&] { File(folder_, File::Mode::kReadRegular); });
  std::string nul = "a";
  nul += '\0';
  expect_error(Code::kInvalidArgument, {"NUL", "a\\x00"},
               [&] { File(fs::path(nul), File::Mode::kRead); });
  File(folder_ / "a", File::Mode::kCreate).append("x");
  File read_only(folder_ / "a", File::Mode::kRead);
  expect_error(Code::kIo, {"cannot write", (folder_ / "a").string()},
               [&] { read_only.write_at(0, bytes_of("y")); });
  expect_error(Code::kIo, {"cannot write"}, [&] { read_only.append("y"); });
  if (fs::exists("/dev/full")) {
    File full("/dev/full", File::Mode::kAppend);
    expect_error(Code::kIo, {"/dev/full", "No space left on device"}, [&] { full.append("y"); });
  }
  // Control characters of a path do not reach the message.
  expect_error(Code::kNotFound, {"\\x1b[31m"},
               [&] { File(folder_ / "\x1b[31m", File::Mode::kRead); });
}

TEST_F(Files, TruncationIsCorruptionWithItsPlace) {
  File(folder_ / "a", File::Mode::kCreate).append("12345");
  const File file(folder_ / "a", File::Mode::kRead);
  expect_error(Code::kCorrupt,
               {(folder_ / "a").string(), "has 5 bytes", "6 bytes at 2", "up to byte 8"},
               [&] { read(file, 2, 6); });
  expect_error(Code::kCorrupt, {"1 bytes at 100"}, [&] { read(file, 100, 1); });
}

TEST_F(Files, TextFilesHaveALimit) {
  File(folder_ / "a", File::Mode::kCreate).append("12345");
  EXPECT_EQ(read_text_file(folder_ / "a", 5), "12345");
  expect_error(Code::kIo, {"5 bytes", "more than the 4"},
               [&] { read_text_file(folder_ / "a", 4); });
  File(folder_ / "empty", File::Mode::kCreate);
  EXPECT_EQ(read_text_file(folder_ / "empty"), "");
}

TEST_F(Files, DurableWritesReplaceAndLeaveNothingElse) {
  const fs::path path = folder_ / "state.json";
  write_file_durably(path, "old");
  write_file_durably(path, "new content");
  EXPECT_EQ(read_text_file(path), "new content");
  EXPECT_EQ(entries(), 1u);
  // A target that cannot be replaced keeps its content, and the temporary file goes away.
  fs::create_directory(folder_ / "taken");
  File(folder_ / "taken" / "inside", File::Mode::kCreate);
  expect_error(Code::kIo, {"cannot replace", "taken"},
               [&] { write_file_durably(folder_ / "taken", "x"); });
  EXPECT_TRUE(fs::exists(folder_ / "taken" / "inside"));
  EXPECT_EQ(entries(), 2u);
  expect_error(Code::kNotFound, {"cannot write"},
               [&] { write_file_durably(folder_ / "absent" / "x", "x"); });
}

TEST_F(Files, DurableWritersDoNotMixTheirContents) {
  const fs::path path = folder_ / "shared";
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&, i] {
      for (int k = 0; k < 10; ++k)
        write_file_durably(path, std::string(5000, static_cast<char>('a' + i)));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string text = read_text_file(path);
  ASSERT_EQ(text.size(), 5000u);
  EXPECT_EQ(text, std::string(5000, text[0]));
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, LeftoversOfKilledWritersGoWithTheNextWrite) {
  const fs::path path = folder_ / "a";
  // As a killed process leaves it, and as earlier versions named it.
  for (const char* left : {"a.tmp.99999.0", "a.tmp.99999"}) {
    File(folder_ / left, File::Mode::kCreate).append("half");
  }
  // Not a leftover of this file.
  for (const char* other : {"b.tmp.99999.0", "a.tmp.x", "a.tmp.", "a.tmp.1.2.3"}) {
    File(folder_ / other, File::Mode::kCreate).append("mine");
  }
  {
    ReplacementFile live(path);  // another writer at work, whose file must stay
    live->append("later");
    write_file_durably(path, "now");
    EXPECT_EQ(read_text_file(path), "now");
    live.commit();
  }
  EXPECT_EQ(read_text_file(path), "later");
  EXPECT_FALSE(fs::exists(folder_ / "a.tmp.99999.0"));
  EXPECT_FALSE(fs::exists(folder_ / "a.tmp.99999"));
  EXPECT_EQ(entries(), 5u);
}

TEST_F(Files, ReplacementFilesFollowNoLink) {
  const fs::path victim = folder_ / "victim";
  File(victim, File::Mode::kCreate).append("precious");
  // The names that would be next, taken by somebody who can guess them.
  for (int n = 0; n < 3; ++n) {
    fs::create_symlink(victim, folder_ / str_cat("a.tmp.", ::getpid(), ".", n));
  }
  write_file_durably(folder_ / "a", "content");
  EXPECT_EQ(read_text_file(folder_ / "a"), "content");
  EXPECT_EQ(read_text_file(victim), "precious");
  EXPECT_FALSE(fs::is_symlink(folder_ / "a"));
  expect_error(Code::kIo, {"cannot write"}, [&] { File(victim, File::Mode::kNew); });
}

TEST_F(Files, WithoutCommitNothingIsLeft) {
  { ReplacementFile(folder_ / "a")->append("x"); }
  EXPECT_EQ(entries(), 0u);
}

TEST_F(Files, FoldersAreMadeWithParents) {
  make_folders(folder_ / "a" / "b" / "c");
  make_folders(folder_ / "a" / "b" / "c/");
  make_folders(folder_ / "slash/");
  EXPECT_TRUE(fs::is_directory(folder_ / "slash"));
  EXPECT_TRUE(fs::is_directory(folder_ / "a" / "b" / "c"));
  sync_folder(folder_ / "a");
  File(folder_ / "file", File::Mode::kCreate);
  expect_error(Code::kIo, {"cannot create the folder", "file"},
               [&] { make_folders(folder_ / "file" / "below"); });
  expect_error(Code::kIo, {"Not a directory"}, [&] { sync_folder(folder_ / "file"); });
}

}  // namespace
}  // namespace ds
