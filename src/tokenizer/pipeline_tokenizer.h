// The tokenizer that a tokenizer.json describes: added tokens, normalizer, pre-tokenizer, model,
// post-processor, decoder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/text_model.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/word_piece_model.h"

namespace ds {

using TextModelSpec = std::variant<BpeModelSpec, WordPieceModelSpec>;

struct PipelineTokenizerSpec {
  TextModelSpec model;
  std::vector<AddedToken> added_tokens;
  // The stages as in the file; null when absent.
  Json normalizer;
  Json pre_tokenizer;
  Json post_processor;
  Json decoder;
  Json truncation;  // kept for writing, never applied
  Json padding;
  std::string eos_token;  // empty: the first usual name that exists
};

class PipelineTokenizer final : public Tokenizer {
 public:
  // The pre-tokenizer decides whether a BPE model is one of bytes.
  PipelineTokenizer(PipelineTokenizerSpec spec, std::string_view what);

  void append_encoded(std::string_view text, const EncodeOptions& options,
                      std::vector<int32_t>& ids) const override;
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options) const override;
  int32_t vocab_size() const override { return static_cast<int32_t>(entries_.size()); }
  std::optional<std::string> token(int32_t id) const override;
  std::optional<int32_t> id(std::string_view token) const override;
  std::vector<int32_t> begin_ids() const override { return post_processor_.prefix(); }
  std::optional<int32_t> eos_id() const override { return eos_id_; }
  std::string to_json() const override;

  // Cuts text into the pieces that the model sees, for the trainer.
  void pre_tokenize(std::string_view text, PreTokenizer::Arena& arena,
                    std::vector<std::string_view>& pieces) const;

 private:
  struct Entry {
    std::string token;
    std::string bytes;  // what a byte-level decoder makes of it
    bool exists = false;
    bool special = false;
  };

  void add_model_entries(std::string_view what);
  void add_added_entries(std::string_view what);
  void choose_eos(const std::string& name, std::string_view what);
  // The text between raw added tokens: normalised, cut at normalised added tokens, encoded.
  void encode_text(std::string_view text, PreTokenizer::Place place, const EncodeOptions& options,
                   std::vector<int32_t>& ids, TimeLimit& time) const;
  void encode_model_text(std::string_view text, PreTokenizer::Place place,
                         std::vector<int32_t>& ids, TimeLimit& time) const;

  // Kept for to_json(); the model keeps its own part.
  std::vector<AddedToken> added_tokens_;
  Json stages_;
  PreTokenizer pre_tokenizer_;
  Normalizer normalizer_;
  Decoder decoder_;
  std::unique_ptr<const TextModel> model_;
  PostProcessor post_processor_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
  std::vector<Entry> entries_;  // by id
  std::unordered_map<std::string, int32_t> added_ids_;
  std::optional<int32_t> eos_id_;
};

}  // namespace ds
