// A text that is being continued: what of it the model is to read next, and the tokens that come.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "infer/generate.h"

namespace ds::infer {

// Throws kInvalidArgument or kUnsupported for what no model of this kind can continue.
void check_request(const models::ArchitectureInfo& info, std::span<const int32_t> prompt,
                   const GenerateOptions& options);

class Continuation {
 public:
  // Of a prompt that check_request has passed. `options` outlive it.
  Continuation(const models::ArchitectureInfo& info, std::span<const int32_t> prompt,
               const GenerateOptions& options, uint64_t seed);

  // Tokens that a cache needs room for: all, or the positions that the model has.
  int64_t capacity() const { return capacity_; }
  // What the model has not read.
  std::span<const int32_t> fresh() const {
    return std::span(text_).last(static_cast<size_t>(fresh_));
  }
  // The cache is full, and the text was taken out of it: its later half is read anew.
  void begin_again();
  // The token that follows; none where it is the one that ends the text.
  std::optional<int32_t> sample(std::span<const float> logits);

  bool ended() const { return ended_ || count() >= options_.max_tokens; }
  // As the caller wants.
  void end() { ended_ = true; }
  std::vector<int32_t> new_tokens() const { return {text_.begin() + prompt_, text_.end()}; }

 private:
  int64_t count() const { return std::ssize(text_) - prompt_; }

  const GenerateOptions& options_;
  const uint64_t seed_;
  const int64_t prompt_;  // tokens
  int64_t capacity_ = 0;
  std::vector<int32_t> text_;
  int64_t fresh_ = 0;  // at its end
  bool forgot_ = false, ended_ = false;
};

}  // namespace ds::infer
