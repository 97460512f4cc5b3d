// Tokens of a tokenizer.json that are found in text before the model sees it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ds {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool lstrip = false;       // takes the blanks before it
  bool rstrip = false;       // takes the blanks after it
  bool single_word = false;  // only between non-word characters
  bool normalized = false;   // searched in the normalised text
};

// A stretch of text: an added token, or (id < 0) text for the model.
struct AddedTokenSegment {
  std::string_view text;
  int32_t id = -1;
};

// Finds tokens: leftmost first, the longest of those that begin there.
class AddedTokenMatcher {
 public:
  // `index` goes back to the caller's list; empty patterns are ignored.
  void add(std::string_view pattern, const AddedToken& token);
  bool empty() const noexcept { return tokens_.empty(); }

  void split(std::string_view text, bool parse_special,
             std::vector<AddedTokenSegment>& segments) const;

 private:
  // The longest token that begins at `pos`: its index and length, or -1.
  int longest_at(std::string_view text, size_t pos, size_t& length) const;

  struct Node {
    int token = -1;
  };
  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{Node{}};
  std::unordered_map<uint64_t, uint32_t> edges_;  // (node, byte) -> node
  std::array<bool, 256> first_{};                 // bytes that begin a token
};

}  // namespace ds
