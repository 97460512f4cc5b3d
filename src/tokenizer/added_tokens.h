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
  // Empty patterns are ignored. After the last one, finish().
  void add(std::string_view pattern, const AddedToken& token);
  void finish();
  bool empty() const noexcept { return patterns_.empty(); }

  void split(std::string_view text, bool parse_special,
             std::vector<AddedTokenSegment>& segments) const;

 private:
  struct Pattern {
    AddedToken token;
    std::string text;
  };
  // A trie of patterns as they are written.
  struct Node {
    int pattern = -1;
  };
  // A state of Aho and Corasick's automaton of the patterns, read from their ends.
  struct State {
    uint32_t shorter = 0;  // the state of the longest proper suffix
    int longest = -1;      // the longest pattern that is a suffix of the state
  };
  // The longest pattern that begins at `pos`, or -1. False when that is not known after
  // kShortWalk bytes.
  bool longest_at(std::string_view text, size_t pos, int& pattern) const;
  // For every place of the text the longest pattern that begins there, or -1.
  std::vector<int> longest_everywhere(std::string_view text) const;
  uint32_t next_state(uint32_t state, char byte) const;

  std::vector<Pattern> patterns_;
  std::vector<Node> nodes_{Node{}};
  std::unordered_map<uint64_t, uint32_t> edges_;  // (node, byte) -> node
  std::array<bool, 256> first_{};                 // bytes that begin a pattern
  // Only where a pattern is longer than kShortWalk.
  std::vector<State> states_;
  std::unordered_map<uint64_t, uint32_t> state_edges_;
};

}  // namespace ds
