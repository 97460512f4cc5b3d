#include "tokenizer/tokenizer.h"

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/unicode.h"

namespace ds {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  void append_encoded(std::string_view text, const EncodeOptions&,
                      std::vector<int32_t>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }

  std::string decode(std::span<const int32_t> ids, const DecodeOptions&) const override {
    std::string out;
    out.reserve(ids.size());
    for (const int32_t id : ids) {
      DS_CHECK(id >= 0 && id < 256, Code::kInvalidArgument, "cannot decode token ", id,
               ": the byte tokenizer has 256 tokens");
      out.push_back(static_cast<char>(id));
    }
    return out;
  }

  int32_t vocab_size() const override { return 256; }

  std::optional<std::string> token(int32_t id) const override {
    if (id < 0 || id >= 256) return std::nullopt;
    std::string out;
    append_utf8(out, byte_alphabet()[static_cast<size_t>(id)]);
    return out;
  }

  std::optional<int32_t> id(std::string_view token) const override {
    const auto bytes = alphabet_to_bytes(token);
    if (!bytes || bytes->size() != 1) return std::nullopt;
    return static_cast<unsigned char>((*bytes)[0]);
  }

  std::optional<int32_t> eos_id() const override { return std::nullopt; }

  // A byte-level BPE without merges says the same.
  std::string to_json() const override {
    Json vocab = Json::object();
    for (int32_t i = 0; i < 256; ++i) {
      vocab.get_ref<Json::object_t&>().emplace_back(*token(i), i);
    }
    const Json byte_level = {{"type", "ByteLevel"},
                             {"add_prefix_space", false},
                             {"trim_offsets", true},
                             {"use_regex", false}};
    const Json document = {{"version", "1.0"},
                           {"truncation", nullptr},
                           {"padding", nullptr},
                           {"added_tokens", Json::array()},
                           {"normalizer", nullptr},
                           {"pre_tokenizer", byte_level},
                           {"post_processor", nullptr},
                           {"decoder", byte_level},
                           {"model",
                            {{"type", "BPE"},
                             {"dropout", nullptr},
                             {"unk_token", nullptr},
                             {"continuing_subword_prefix", nullptr},
                             {"end_of_word_suffix", nullptr},
                             {"fuse_unk", false},
                             {"byte_fallback", false},
                             {"ignore_merges", false},
                             {"vocab", std::move(vocab)},
                             {"merges", Json::array()}}}};
    return dump_json(document, 2);
  }
};

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  append_encoded(text, options, ids);
  return ids;
}

std::string Tokenizer::decode_text(std::span<const int32_t> ids,
                                   const DecodeOptions& options) const {
  return replace_invalid_utf8(decode(ids, options));
}

TokenizerPtr make_byte_tokenizer() { return std::make_shared<ByteTokenizer>(); }

}  // namespace ds
