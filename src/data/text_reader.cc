#include "data/text_reader.h"

#include <algorithm>

#include "base/error.h"

namespace ds {
namespace {

constexpr size_t kMaxBlock = size_t{1} << 26;
constexpr size_t kLineRead = size_t{1} << 20;

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

size_t safe_text_cut(std::string_view text) {
  // A space is best (no step adds another before it), a line end is next.
  for (const char blank : {' ', '\n'}) {
    for (size_t i = text.size(); i-- > 1;) {
      if (text[i] == blank && i + 1 < text.size() && is_plain(text[i + 1])) return i;
    }
  }
  return 0;
}

TextBlockReader::TextBlockReader(const std::filesystem::path& path, size_t block_bytes)
    : file_(path, File::Mode::kRead), size_(file_.size()), block_bytes_(block_bytes) {
  DS_CHECK(block_bytes > 0 && block_bytes <= kMaxBlock, Code::kInvalidArgument, "text blocks of ",
           block_bytes, " bytes; at most ", kMaxBlock);
}

void TextBlockReader::fill(size_t wanted) {
  if (pending_.size() >= wanted) return;
  const auto more = static_cast<size_t>(
      std::min<int64_t>(size_ - offset_, static_cast<int64_t>(wanted - pending_.size())));
  const size_t old = pending_.size();
  pending_.resize(old + more);
  file_.read_at(offset_, std::as_writable_bytes(std::span(pending_).subspan(old)));
  offset_ += static_cast<int64_t>(more);
}

std::string TextBlockReader::next() {
  size_t cut = 0;
  for (size_t wanted = block_bytes_;; wanted *= 2) {
    fill(wanted);
    if (offset_ == size_) {
      cut = pending_.size();
      break;
    }
    cut = safe_text_cut(pending_);
    if (cut > 0) break;
    if (wanted >= kMaxBlock) {
      // No blank in all that text: cut between characters.
      cut = pending_.size();
      while (cut > pending_.size() - 4 &&
             (static_cast<unsigned char>(pending_[cut - 1]) & 0x80) != 0) {
        --cut;
        if ((static_cast<unsigned char>(pending_[cut]) & 0x40) != 0) break;
      }
      break;
    }
  }
  std::string block = pending_.substr(0, cut);
  pending_.erase(0, cut);
  return block;
}

LineReader::LineReader(const std::filesystem::path& path, int64_t max_line)
    : file_(path, File::Mode::kRead), size_(file_.size()) {
  DS_CHECK(max_line > 0, Code::kInvalidArgument, "lines of at most ", max_line, " bytes");
  max_line_ = static_cast<size_t>(max_line);
}

std::optional<std::string> LineReader::next() {
  size_t searched = position_;
  for (;;) {
    const size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos || (offset_ == size_ && position_ < buffer_.size())) {
      const size_t stop = std::min(end, buffer_.size());
      std::string line = buffer_.substr(position_, stop - position_);
      position_ = std::min(stop + 1, buffer_.size());
      ++line_;
      DS_CHECK(line.size() <= max_line_, Code::kInvalidArgument,
               printable(file_.path().string(), 300), ": line ", line_, " is longer than ",
               max_line_, " bytes");
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    if (offset_ == size_) return std::nullopt;
    buffer_.erase(0, position_);
    position_ = 0;
    searched = buffer_.size();
    DS_CHECK(buffer_.size() <= max_line_, Code::kInvalidArgument,
             printable(file_.path().string(), 300), ": line ", line_ + 1, " is longer than ",
             max_line_, " bytes");
    const auto more =
        static_cast<size_t>(std::min<int64_t>(size_ - offset_, static_cast<int64_t>(kLineRead)));
    buffer_.resize(searched + more);
    file_.read_at(offset_, std::as_writable_bytes(std::span(buffer_).subspan(searched)));
    offset_ += static_cast<int64_t>(more);
  }
}

}  // namespace ds
