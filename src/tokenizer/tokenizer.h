// Tokenizers: text to token ids and back. Made by the factories below; immutable, so one tokenizer
// serves any number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ds {

struct EncodeOptions {
  // Add what the tokenizer's post-processor adds around a text (begin and end tokens).
  bool add_special_tokens = false;
  // Recognise special tokens that are spelled out in the text. Off for text that must not be able
  // to inject control tokens.
  bool parse_special_tokens = true;
};

struct DecodeOptions {
  bool skip_special_tokens = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Any bytes may be given; byte-level tokenizers keep ill-formed UTF-8 as it is, others read it
  // as U+FFFD.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  virtual void append_encoded(std::string_view text, const EncodeOptions& options,
                              std::vector<int32_t>& ids) const = 0;

  // The bytes behind the ids; they need not be well-formed UTF-8 (a token may hold half a
  // character). An id without a token is an error.
  virtual std::string decode(std::span<const int32_t> ids,
                             const DecodeOptions& options = {}) const = 0;
  // Well-formed UTF-8: ill-formed parts become U+FFFD.
  std::string decode_text(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // One more than the largest id, so the smallest embedding table that fits.
  virtual int32_t vocab_size() const = 0;
  // The token as the vocabulary spells it; nullopt for an id without a token.
  virtual std::optional<std::string> token(int32_t id) const = 0;
  virtual std::optional<int32_t> id(std::string_view token) const = 0;
  // What EncodeOptions::add_special_tokens puts before a text.
  virtual std::vector<int32_t> begin_ids() const { return {}; }
  // The end-of-document token.
  virtual std::optional<int32_t> eos_id() const = 0;

  // The text of an equivalent tokenizer.json.
  virtual std::string to_json() const = 0;

 protected:
  Tokenizer() = default;
};

using TokenizerPtr = std::shared_ptr<const Tokenizer>;

// 256 tokens, one per byte.
TokenizerPtr make_byte_tokenizer();

struct TokenizerLoadOptions {
  // The end-of-document token by name; empty: the first of the usual names that exists.
  std::string eos_token = {};
};

// Reads the text of a tokenizer.json with a BPE or WordPiece model; `what` names the source in
// errors. Parts that are not supported are refused by name.
TokenizerPtr parse_tokenizer_json(std::string_view json, std::string_view what,
                                  const TokenizerLoadOptions& options = {});

// A tokenizer.json file, or a folder with one; beside it, tokenizer_config.json may name the
// end-of-document token. A folder without it may hold BERT's vocab.txt (also as a path of its own),
// or GPT-2's vocab.json and merges.txt.
TokenizerPtr load_tokenizer(const std::filesystem::path& path,
                            const TokenizerLoadOptions& options = {});

// GPT-2's pair of files. As in the original, special tokens are not recognised in text.
TokenizerPtr load_gpt2_tokenizer(const std::filesystem::path& vocab_json,
                                 const std::filesystem::path& merges_txt,
                                 const TokenizerLoadOptions& options = {});

struct BertVocabOptions {
  bool lowercase = true;
  std::optional<bool> strip_accents = std::nullopt;  // nullopt: with the case
  bool ideographs = true;                            // each is a word of its own
};

// BERT's tokenizer from the text of its vocab.txt, one token per line: [CLS] text [SEP].
TokenizerPtr parse_bert_vocab(std::string_view text, std::string_view what,
                              const BertVocabOptions& options = {},
                              const TokenizerLoadOptions& load_options = {});

}  // namespace ds
