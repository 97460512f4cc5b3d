#include "tokenizer/word_piece_model.h"

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace ds {
namespace {

constexpr int64_t kMostChars = 1 << 20;

}  // namespace

WordPieceModel::WordPieceModel(WordPieceModelSpec spec, std::string_view what)
    : TextModel(std::move(spec.vocab), what), spec_(std::move(spec)), token_at_(2, -1) {
  spec_.vocab.clear();
  DS_CHECK(spec_.max_input_chars_per_word >= 0 && spec_.max_input_chars_per_word <= kMostChars,
           Code::kCorrupt, what, ": max_input_chars_per_word is ", spec_.max_input_chars_per_word,
           ", outside 0 to ", kMostChars);
  // Without the token, only text that needs it is refused.
  unk_id_ = id(spec_.unk_token).value_or(-1);
  // No word is longer, so no longer token is ever found; this bounds the tries.
  const auto longest = static_cast<size_t>(spec_.max_input_chars_per_word) * 4;
  const std::string& prefix = spec_.continuing_subword_prefix;
  for (const auto& [token, token_id] : vocab_) {
    if (token.size() <= longest) insert(0, token, token_id);
    if (token.starts_with(prefix) && token.size() - prefix.size() <= longest) {
      insert(1, std::string_view(token).substr(prefix.size()), token_id);
    }
  }
}

void WordPieceModel::insert(uint32_t root, std::string_view text, int32_t token_id) {
  if (text.empty()) return;
  uint32_t node = root;
  for (const char byte : text) {
    const uint64_t edge = PairMap<uint32_t>::key(node, static_cast<unsigned char>(byte));
    if (const uint32_t* next = edges_.find(edge)) {
      node = *next;
      continue;
    }
    node = static_cast<uint32_t>(token_at_.size());
    edges_[edge] = node;
    token_at_.push_back(-1);
  }
  token_at_[node] = token_id;
}

void WordPieceModel::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  bool known = count_utf8_chars(piece) <= spec_.max_input_chars_per_word;
  for (size_t pos = 0; known && pos < piece.size();) {
    uint32_t node = pos == 0 ? 0 : 1;
    int32_t token_id = -1;
    size_t end = pos;
    for (size_t i = pos; i < piece.size(); ++i) {
      const uint32_t* const next =
          edges_.find(PairMap<uint32_t>::key(node, static_cast<unsigned char>(piece[i])));
      if (next == nullptr) break;
      node = *next;
      if (token_at_[node] >= 0) {
        token_id = token_at_[node];
        end = i + 1;
      }
    }
    known = token_id >= 0;
    ids.push_back(token_id);
    pos = end;
  }
  if (known) return;
  ids.resize(before);
  DS_CHECK(unk_id_ >= 0, Code::kInvalidArgument, "the tokenizer has no tokens for \"",
           printable(piece), "\", and its unk_token \"", printable(spec_.unk_token),
           "\" is not in the vocabulary");
  ids.push_back(unk_id_);
}

Json WordPieceModel::to_json() const {
  return {{"type", "WordPiece"},
          {"unk_token", spec_.unk_token},
          {"continuing_subword_prefix", spec_.continuing_subword_prefix},
          {"max_input_chars_per_word", spec_.max_input_chars_per_word},
          {"vocab", vocab_json()}};
}

}  // namespace ds
