// Reads large text files in parts that can be tokenised one by one: blocks of running text, or
// lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/file.h"

namespace ds {

// Cuts running text into blocks of about `block_bytes`. A cut is made before a blank between words,
// where GPT-2's splitting pattern cuts in any case, so the tokens are those of the whole text.
class TextBlockReader {
 public:
  explicit TextBlockReader(const std::filesystem::path& path, size_t block_bytes = size_t{1} << 20);

  // The next block; empty at the end.
  std::string next();
  int64_t size() const noexcept { return size_; }

 private:
  void fill(size_t wanted);

  File file_;
  int64_t size_ = 0;
  int64_t offset_ = 0;
  size_t block_bytes_;
  std::string pending_;
};

// Where to cut `text`, which goes on after its end: behind the last safe place, or 0 if none.
size_t safe_text_cut(std::string_view text);

class LineReader {
 public:
  // Longer lines are an error.
  explicit LineReader(const std::filesystem::path& path, int64_t max_line = int64_t{1} << 30);

  // The next line without its end; nullopt at the end of the file.
  std::optional<std::string> next();
  int64_t line_number() const noexcept { return line_; }  // of the last line, from 1

 private:
  File file_;
  int64_t size_ = 0;
  int64_t offset_ = 0;
  int64_t line_ = 0;
  size_t max_line_;
  std::string buffer_;
  size_t position_ = 0;
};

}  // namespace ds
