// The decoder of a tokenizer.json: from the spelling of tokens back to text.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "tokenizer/text_pattern.h"

namespace ds {

class Decoder {
 public:
  Decoder() = default;
  Decoder(const Json& json, std::string_view what);  // null: tokens with spaces between

  // The whole decoder is the inverse of a ByteLevel pre-tokenizer.
  bool byte_level() const noexcept { return byte_level_; }
  // The text of `count` tokens, which are asked for twice.
  using TokenAt = std::function<std::string_view(size_t index)>;
  std::string apply(size_t count, const TokenAt& token) const;

 private:
  using Tokens = std::vector<std::string>;
  struct Limits {
    size_t bytes;  // of all tokens together
    TimeLimit& time;
    bool begins;  // the first of the tokens is the text's
  };
  struct Replace {
    TextPattern pattern;
    std::string content;
    void apply(Tokens& tokens, Limits limits) const;
  };
  struct ByteFallback {
    void apply(Tokens& tokens, Limits) const;
  };
  struct Fuse {
    void apply(Tokens& tokens, Limits) const;
  };
  struct Strip {
    std::string content;
    size_t start = 0;
    size_t stop = 0;
    void apply(Tokens& tokens, Limits) const;
  };
  struct Metaspace {
    std::string replacement;
    bool drop_first = true;  // the prefix that the pre-tokenizer put there
    void apply(Tokens& tokens, Limits) const;
  };
  struct WordPiece {
    std::string prefix;
    bool cleanup = true;
    void apply(Tokens& tokens, Limits) const;
  };
  void add(const Json& json, std::string_view what, bool alone);

  std::vector<std::variant<Replace, ByteFallback, Fuse, Strip, Metaspace, WordPiece>> steps_;
  bool byte_level_ = false;
  bool null_ = true;
};

}  // namespace ds
