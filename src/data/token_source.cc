#include "data/token_source.h"

#include <algorithm>

#include "base/error.h"

namespace ds {

std::string TokenSource::place(int64_t index, int64_t offset) const {
  return str_cat(printable(name(), 300), ": token ", offset, " of sequence ", index);
}

void TokenSource::check_tokens(int64_t begin, int64_t end, int64_t vocab) const {
  std::vector<int32_t> piece(size_t{1} << 14);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t size = sequence_size(i);
    for (int64_t at = 0; at < size; at += static_cast<int64_t>(piece.size())) {
      const auto n = static_cast<size_t>(std::min(size - at, static_cast<int64_t>(piece.size())));
      const auto tokens = std::span(piece).first(n);
      read(i, at, tokens);
      const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                    [&](int32_t token) { return token < 0 || token >= vocab; });
      if (bad != tokens.end()) fail_token(place(i, at + (bad - tokens.begin())), *bad, vocab);
    }
  }
}

void fail_token(std::string_view place, int64_t token, int64_t vocab) {
  fail(Code::kInvalidArgument, place, " holds the token id ", token,
       ", outside the model's vocabulary of ", vocab,
       ": the file is damaged, or was made with another tokenizer than the model's; make it again");
}

void TokenSource::check_range(int64_t index, int64_t offset, size_t count) const {
  DS_CHECK(index >= 0 && index < sequence_count(), Code::kInvalidArgument, name(), ": sequence ",
           index, " does not exist; there are ", sequence_count());
  const int64_t size = sequence_size(index);
  DS_CHECK(offset >= 0 && offset <= size && count <= static_cast<size_t>(size - offset),
           Code::kInvalidArgument, name(), ": sequence ", index, " has ", size,
           " tokens; cannot read ", count, " from ", offset);
}

MemoryTokens::MemoryTokens(std::vector<int32_t> tokens, std::vector<int64_t> ends, std::string name)
    : tokens_(std::move(tokens)), ends_(std::move(ends)), name_(std::move(name)) {
  int64_t begin = 0;
  for (const int64_t end : ends_) {
    DS_CHECK(end >= begin && end - begin <= INT32_MAX, Code::kInvalidArgument, name_,
             ": a sequence from token ", begin, " to ", end);
    begin = end;
  }
  DS_CHECK(begin == static_cast<int64_t>(tokens_.size()), Code::kInvalidArgument, name_,
           ": sequences end at token ", begin, " of ", tokens_.size());
}

int32_t MemoryTokens::sequence_size(int64_t index) const {
  DS_CHECK(index >= 0 && index < sequence_count(), Code::kInvalidArgument, name_, ": sequence ",
           index, " does not exist; there are ", sequence_count());
  return static_cast<int32_t>(ends_[static_cast<size_t>(index)] - begin_of(index));
}

void MemoryTokens::read(int64_t index, int64_t offset, std::span<int32_t> out) const {
  check_range(index, offset, out.size());
  std::copy_n(tokens_.begin() + (begin_of(index) + offset), out.size(), out.begin());
}

TokenSourcePtr cut_running_tokens(std::vector<int32_t> tokens, int64_t sequence_length,
                                  std::string name) {
  constexpr int64_t kMaxLength = int64_t{1} << 24;  // keeps 64 samples within a sequence's 2^31
  DS_CHECK(sequence_length > 0 && sequence_length <= kMaxLength, Code::kInvalidArgument,
           "the sequence length is ", sequence_length, "; it must be from 1 to ", kMaxLength);
  const auto total = static_cast<int64_t>(tokens.size());
  const int64_t sample = sequence_length + 1;
  const int64_t piece = std::clamp(total / 1000, 2 * sample, 64 * sample);
  std::vector<int64_t> ends;
  for (int64_t end = piece; end < total; end += piece) ends.push_back(end);
  if (total > 0) ends.push_back(total);
  return std::make_shared<MemoryTokens>(std::move(tokens), std::move(ends), std::move(name));
}

}  // namespace ds
