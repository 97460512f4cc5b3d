#include "launch_output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

namespace tool {
namespace {

constexpr size_t kLongestLine = size_t{1} << 16;  // a longer one is passed on in parts

void keep(std::deque<std::string>& last, std::string_view line) {
  last.emplace_back(line.substr(0, kLastLineBytes));
  if (last.size() > kLastLines) last.pop_front();
}

}  // namespace

void OutputQueue::write_some() {
  // A pipe that poll() calls writable takes this much without blocking.
  constexpr size_t kPiece = 4096;
  if (empty()) return;
  const ssize_t written =
      ::write(file_, waiting_.data() + done_, std::min(kPiece, waiting_.size() - done_));
  if (written >= 0) {
    done_ += static_cast<size_t>(written);
  } else if (errno != EINTR && errno != EAGAIN) {
    broken_ = true;
    done_ = waiting_.size();
  }
  if (empty() || done_ > (size_t{1} << 16)) {
    waiting_.erase(0, done_);
    done_ = 0;
  }
}

LineReader::LineReader(int file, std::string prefix, OutputQueue* to)
    : file_(file), prefix_(std::move(prefix)), to_(to) {}

LineReader::~LineReader() {
  if (file_ >= 0) ::close(file_);
}

void LineReader::pass_on(std::string_view line) {
  to_->add(prefix_);
  to_->add(line);
  to_->add("\n");
  keep(last_, line);
}

bool LineReader::read_some() {
  char buffer[8192];
  const ssize_t size = ::read(file_, buffer, sizeof buffer);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (size <= 0) {
    finish();
    ::close(file_);
    file_ = -1;
    return false;
  }
  std::string_view rest(buffer, static_cast<size_t>(size));
  for (size_t end; (end = rest.find('\n')) != rest.npos; rest.remove_prefix(end + 1)) {
    part_ += rest.substr(0, end);
    pass_on(part_);
    part_.clear();
  }
  part_ += rest;
  if (part_.size() >= kLongestLine) finish();
  return true;
}

void LineReader::finish() {
  if (part_.empty()) return;
  pass_on(part_);
  part_.clear();
}

std::deque<std::string> last_lines_of(const std::string& path) {
  std::deque<std::string> last;
  std::ifstream file(path, std::ios::binary);
  constexpr std::streamoff kTail = kLastLines * (kLastLineBytes + 1);
  file.seekg(0, std::ios::end);
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTail));
  for (std::string line; std::getline(file, line);) keep(last, line);
  return last;
}

}  // namespace tool
