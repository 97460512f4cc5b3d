#include "data/added_tokens.h"

#include <algorithm>

#include "data/unicode.h"

namespace ds {
namespace {

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
  if (nodes_[node].token >= 0) return;  // equal after normalisation: the first keeps the text
  nodes_[node].token = static_cast<int>(tokens_.size());
  tokens_.push_back(token);
}

int AddedTokenMatcher::longest_at(std::string_view text, size_t pos, size_t& length) const {
  int found = -1;
  uint32_t node = 0;
  for (size_t i = pos; i < text.size(); ++i) {
    const auto edge = edges_.find(edge_key(node, text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (nodes_[node].token >= 0) {
      found = nodes_[node].token;
      length = i + 1 - pos;
    }
  }
  return found;
}

void AddedTokenMatcher::split(std::string_view text, bool parse_special,
                              std::vector<AddedTokenSegment>& segments) const {
  size_t done = 0;  // everything before is in segments
  if (!tokens_.empty()) {
    for (size_t pos = 0; pos < text.size();) {
      size_t length = 0;
      const int index =
          first_[static_cast<unsigned char>(text[pos])] ? longest_at(text, pos, length) : -1;
      if (index < 0) {
        ++pos;
        continue;
      }
      const AddedToken& token = tokens_[static_cast<size_t>(index)];
      size_t begin = pos, end = pos + length;
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
