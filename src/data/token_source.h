// Where tokens come from: an indexed data set on disk, or text in memory. A source is a list of
// sequences (documents or parts of them), read by index.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ds {

// Immutable; usable from many threads.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t sequence_count() const = 0;
  virtual int32_t sequence_size(int64_t index) const = 0;  // tokens
  // Tokens [offset, offset + out.size()) of one sequence; outside it is an error.
  virtual void read(int64_t index, int64_t offset, std::span<int32_t> out) const = 0;
  // For messages.
  virtual std::string name() const = 0;
  // Where a token lies, for messages: "PREFIX.bin: byte 80 (token 3 of sequence 7, document 2)".
  virtual std::string place(int64_t index, int64_t offset) const;

  // Reads the sequences [begin, end) and throws kInvalidArgument, naming the place, for the first
  // token that is not below `vocab`.
  void check_tokens(int64_t begin, int64_t end, int64_t vocab) const;

 protected:
  // Throws unless sequence `index` exists and holds the given range.
  void check_range(int64_t index, int64_t offset, size_t count) const;
};

// Throws kInvalidArgument: the token at `place` is not one of the vocabulary.
[[noreturn]] void fail_token(std::string_view place, int64_t token, int64_t vocab);

using TokenSourcePtr = std::shared_ptr<const TokenSource>;

class MemoryTokens final : public TokenSource {
 public:
  // `ends[i]` is the token behind sequence i: rising, the last equal to tokens.size().
  MemoryTokens(std::vector<int32_t> tokens, std::vector<int64_t> ends, std::string name);

  int64_t sequence_count() const override { return static_cast<int64_t>(ends_.size()); }
  int32_t sequence_size(int64_t index) const override;
  void read(int64_t index, int64_t offset, std::span<int32_t> out) const override;
  std::string name() const override { return name_; }

 private:
  int64_t begin_of(int64_t index) const {
    return index == 0 ? 0 : ends_[static_cast<size_t>(index) - 1];
  }

  std::vector<int32_t> tokens_;
  std::vector<int64_t> ends_;
  std::string name_;
};

// Running text as a source that can be split: one document cannot be shared out between training
// and validation, so the tokens are cut into consecutive sequences. They are a thousandth of the
// text, so that even "969,30,1" finds its parts, but at least 2 and at most 64 samples of
// sequence_length + 1 tokens: few samples then run over a cut.
TokenSourcePtr cut_running_tokens(std::vector<int32_t> tokens, int64_t sequence_length,
                                  std::string name);

}  // namespace ds
