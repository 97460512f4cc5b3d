// The WordPiece model of BERT: a word becomes the longest token that it begins with, the rest the
// longest continuations (spelled "##..."), or one unknown token when no split fits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pair_map.h"
#include "tokenizer/text_model.h"

namespace ds {

struct WordPieceModelSpec {
  Vocabulary vocab;
  std::string unk_token = "[UNK]";
  std::string continuing_subword_prefix = "##";
  int64_t max_input_chars_per_word = 100;  // longer words are unknown
};

class WordPieceModel final : public TextModel {
 public:
  WordPieceModel(WordPieceModelSpec spec, std::string_view what);

  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const override;
  Json to_json() const override;

 private:
  void insert(uint32_t root, std::string_view text, int32_t token_id);

  WordPieceModelSpec spec_;  // without the vocabulary
  int32_t unk_id_ = -1;
  // Two tries over bytes: words begin at node 0, continuations at node 1. A step costs one
  // look-up, so a word costs its length times the number of its tokens at most.
  PairMap<uint32_t> edges_;        // (node, byte) -> node
  std::vector<int32_t> token_at_;  // by node, -1 inside of tokens
};

}  // namespace ds
