// What ranks print, line by line with their numbers before it, without ever waiting for the reader.
#pragma once

#include <deque>
#include <string>
#include <string_view>

namespace tool {

// A file descriptor that is written in small pieces, whenever it takes some.
class OutputQueue {
 public:
  explicit OutputQueue(int file) : file_(file) {}

  void add(std::string_view text) {
    if (!broken_) waiting_ += text;
  }
  // Writes some; for when poll() found that the file takes some.
  void write_some();

  int file() const { return file_; }
  bool empty() const { return done_ == waiting_.size(); }
  // So much waits that ranks had better wait too.
  bool full() const { return waiting_.size() - done_ > (size_t{1} << 20); }
  // The reader has gone; nothing is kept any more.
  bool broken() const { return broken_; }

 private:
  int file_;
  std::string waiting_;
  size_t done_ = 0;  // bytes of it that are written
  bool broken_ = false;
};

// The reading end of a pipe, cut into lines.
class LineReader {
 public:
  // Owns `file`, which must not block.
  LineReader(int file, std::string prefix, OutputQueue* to);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // Reads some of what there is. False when there is nothing (now, or any more: then a line
  // without an end is passed on, too).
  bool read_some();
  // Passes on a line that has no end yet.
  void finish();

  int file() const { return file_; }
  const OutputQueue& to() const { return *to_; }
  bool open() const { return file_ >= 0; }
  const std::deque<std::string>& last_lines() const { return last_; }

 private:
  void pass_on(std::string_view line);

  int file_;
  std::string prefix_;
  OutputQueue* to_;
  std::string part_;              // a line whose end has not come
  std::deque<std::string> last_;  // lines
};

// How many lines of its errors are shown again of a rank that failed, and how much of each.
constexpr size_t kLastLines = 10;
constexpr size_t kLastLineBytes = 1000;

// The last lines of a file, as LineReader keeps them.
std::deque<std::string> last_lines_of(const std::string& path);

}  // namespace tool
