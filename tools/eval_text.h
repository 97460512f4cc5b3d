// What `ds eval` scores: the tokens of a file in their order, and its examples line by line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ds.hpp"

namespace tool {

// Whether `path` is the PREFIX of PREFIX.bin and PREFIX.idx.
bool is_token_prefix(const std::string& path);

struct TokenizedText {
  std::vector<int32_t> ids;
  std::optional<int64_t> words;  // separated by blanks; nothing when only tokens are known
};

struct TextOptions {
  bool special = false;   // add what the tokenizer's template puts around a text
  bool wikitext = false;  // take WikiText's tokens back to text first; words are those tokens
};

// All tokens of a text file, of a .jsonl file (an end-of-text token between two documents, if there
// is one) or of a PREFIX. `tokenizer` may be null for a PREFIX.
TokenizedText read_token_text(const std::string& path, const libds::Tokenizer* tokenizer,
                              const TextOptions& options);

// The "text" of every line of a .jsonl file; at most `limit` lines, 0 = all.
std::vector<std::string> read_json_lines(const std::string& path, int64_t limit);

// A text as what stands before its last word, and the tokens of that word with its leading blank.
struct LastWord {
  std::vector<int32_t> context;
  std::vector<int32_t> target;
};
// Nothing for a text of less than two words.
std::optional<LastWord> split_last_word(std::string_view text, const libds::Tokenizer& tokenizer,
                                        bool special);

}  // namespace tool
