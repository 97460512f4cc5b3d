// Tokens as text while they come. A character may need several tokens: what is not complete waits,
// and so does what may be the beginning of a text that ends it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ds.hpp"
#include "stop_text.h"

namespace tool {

class TokenText {
 public:
  // `tokenizer` outlives it.
  TokenText(const libds::Tokenizer& tokenizer, const std::vector<std::string>& stops)
      : tokenizer_(tokenizer), stop_(stops) {}

  // Whether one of the texts that end it has come.
  bool stopped() const { return stop_.stopped(); }
  // What is complete with this token.
  std::string token(int32_t id);
  // What waited.
  std::string finish();

 private:
  // Tokens that are decoded together at most, however broken their bytes are.
  static constexpr size_t kLongestWait = 64;

  std::string pass_on(std::string_view text, size_t end);
  void restart();

  const libds::Tokenizer& tokenizer_;
  StopText stop_;
  std::vector<int32_t> waiting_;
  size_t passed_ = 0;  // bytes of what waits
};

}  // namespace tool
