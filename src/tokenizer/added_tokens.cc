#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace ds {
namespace {

// Walks through a text stop here: a long token that nearly occurs everywhere would make them
// quadratic. Then the whole text is read once more, in linear time.
constexpr size_t kShortWalk = 64;

uint64_t edge_key(uint32_t node, char byte) {
  return (uint64_t{node} << 8) | static_cast<unsigned char>(byte);
}

// Start of the character that ends at `end`; ill-formed bytes count as one character each.
size_t previous_char(std::string_view text, size_t end) {
  size_t pos = end - 1;
  while (pos > 0 && end - pos < 4 && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) --pos;
  const Utf8Char c = utf8_at(text, pos);
  return c.valid && pos + c.length == end ? pos : end - 1;
}

bool is_word_at(std::string_view text, size_t pos) {
  const Utf8Char c = utf8_at(text, pos);
  return c.valid && is_unicode_word(c.code);
}

bool is_space_at(std::string_view text, size_t pos) {
  const Utf8Char c = utf8_at(text, pos);
  return c.valid && is_unicode_space(c.code);
}

}  // namespace

void AddedTokenMatcher::add(std::string_view pattern, const AddedToken& token) {
  if (pattern.empty()) return;
  uint32_t node = 0;
  for (const char byte : pattern) {
    const auto [edge, fresh] =
        edges_.try_emplace(edge_key(node, byte), static_cast<uint32_t>(nodes_.size()));
    if (fresh) nodes_.emplace_back();
    node = edge->second;
  }
  first_[static_cast<unsigned char>(pattern[0])] = true;
  if (nodes_[node].pattern >= 0) return;  // equal after normalisation: the first keeps the text
  nodes_[node].pattern = static_cast<int>(patterns_.size());
  patterns_.push_back({token, std::string(pattern)});
}

bool AddedTokenMatcher::longest_at(std::string_view text, size_t pos, int& pattern) const {
  pattern = -1;
  uint32_t node = 0;
  for (size_t i = pos; i < text.size(); ++i) {
    const auto edge = edges_.find(edge_key(node, text[i]));
    if (edge == edges_.end()) break;
    if (i - pos == kShortWalk) return false;
    node = edge->second;
    if (nodes_[node].pattern >= 0) pattern = nodes_[node].pattern;
  }
  return true;
}

void AddedTokenMatcher::finish() {
  const auto is_long = [](const Pattern& pattern) { return pattern.text.size() > kShortWalk; };
  if (std::ranges::none_of(patterns_, is_long)) return;
  struct Edge {
    uint32_t from, to;
    char byte;
  };
  std::vector<std::vector<Edge>> levels;  // edges by the depth of where they begin
  states_.resize(1);
  for (size_t p = 0; p < patterns_.size(); ++p) {
    const std::string& pattern = patterns_[p].text;
    uint32_t state = 0;
    for (size_t depth = 0; depth < pattern.size(); ++depth) {
      const char byte = pattern[pattern.size() - 1 - depth];
      const auto [edge, fresh] =
          state_edges_.try_emplace(edge_key(state, byte), static_cast<uint32_t>(states_.size()));
      if (fresh) {
        states_.emplace_back();
        if (levels.size() <= depth) levels.emplace_back();
        levels[depth].push_back({state, edge->second, byte});
      }
      state = edge->second;
    }
    states_[state].longest = static_cast<int>(p);
  }
  for (size_t depth = 0; depth < levels.size(); ++depth) {
    for (const Edge& edge : levels[depth]) {
      State& to = states_[edge.to];
      to.shorter = depth == 0 ? 0 : next_state(states_[edge.from].shorter, edge.byte);
      if (to.longest < 0) to.longest = states_[to.shorter].longest;
    }
  }
}

// The longest suffix of the state that has an edge with the byte has it.
uint32_t AddedTokenMatcher::next_state(uint32_t state, char byte) const {
  for (;;) {
    const auto edge = state_edges_.find(edge_key(state, byte));
    if (edge != state_edges_.end()) return edge->second;
    if (state == 0) return 0;
    state = states_[state].shorter;
  }
}

// The text, too, is read from its end: what is found to end at a place begins there as it is
// written.
std::vector<int> AddedTokenMatcher::longest_everywhere(std::string_view text) const {
  std::vector<int> out(text.size());
  uint32_t state = 0;
  for (size_t pos = text.size(); pos-- > 0;) {
    state = next_state(state, text[pos]);
    out[pos] = states_[state].longest;
  }
  return out;
}

void AddedTokenMatcher::split(std::string_view text, bool parse_special,
                              std::vector<AddedTokenSegment>& segments) const {
  size_t done = 0;  // everything before is in segments
  if (!patterns_.empty()) {
    std::vector<int> everywhere;  // once a walk was too long
    for (size_t pos = 0; pos < text.size();) {
      int index = -1;
      if (!everywhere.empty()) {
        index = everywhere[pos];
      } else if (first_[static_cast<unsigned char>(text[pos])] && !longest_at(text, pos, index)) {
        everywhere = longest_everywhere(text);
        index = everywhere[pos];
      }
      if (index < 0) {
        ++pos;
        continue;
      }
      const AddedToken& token = patterns_[static_cast<size_t>(index)].token;
      size_t begin = pos, end = pos + patterns_[static_cast<size_t>(index)].text.size();
      pos = end;  // a rejected match is not searched again for shorter tokens
      if (begin < done || (token.special && !parse_special)) continue;
      if (token.single_word && ((begin > 0 && is_word_at(text, previous_char(text, begin))) ||
                                (end < text.size() && is_word_at(text, end)))) {
        continue;
      }
      if (token.lstrip) {
        while (begin > done) {
          const size_t before = previous_char(text, begin);
          if (before < done || !is_space_at(text, before)) break;
          begin = before;
        }
      }
      if (token.rstrip) {
        while (end < text.size() && is_space_at(text, end)) end += utf8_at(text, end).length;
      }
      if (done < begin) segments.push_back({text.substr(done, begin - done), -1});
      segments.push_back({text.substr(begin, end - begin), token.id});
      done = end;
    }
  }
  if (done < text.size()) segments.push_back({text.substr(done), -1});
}

}  // namespace ds
