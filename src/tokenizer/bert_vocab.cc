// BERT's tokenizer from its vocab.txt: the same stages as the tokenizer.json of such models.
#include "base/json_fields.h"
#include "tokenizer/pipeline_tokenizer.h"

namespace ds {
namespace {

constexpr const char* kSpecialTokens[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

std::string_view trim_end(std::string_view line) {
  while (!line.empty()) {
    size_t last = line.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(line[last]) & 0xC0) == 0x80) --last;
    const Utf8Char c = utf8_at(line, last);
    if (!c.valid || !is_unicode_space(c.code)) break;
    line = line.substr(0, last);
  }
  return line;
}

}  // namespace

TokenizerPtr parse_bert_vocab(std::string_view text, std::string_view what,
                              const BertVocabOptions& options,
                              const TokenizerLoadOptions& load_options) {
  DS_CHECK(is_valid_utf8(text), Code::kCorrupt, what, " is not UTF-8 text");
  WordPieceModelSpec model;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size(); ++line_number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view token = trim_end(text.substr(begin, end - begin));
    begin = end + 1;
    DS_CHECK(line_number < INT32_MAX, Code::kCorrupt, what, " has too many lines");
    // An empty line keeps its number but is no token.
    if (!token.empty()) model.vocab.emplace_back(token, static_cast<int32_t>(line_number));
  }
  PipelineTokenizerSpec spec;
  const auto id_of = [&](std::string_view name) -> std::optional<int32_t> {
    for (const auto& [token, token_id] : model.vocab) {
      if (token == name) return token_id;
    }
    return std::nullopt;
  };
  for (const char* name : kSpecialTokens) {
    const auto found = id_of(name);
    if (!found) continue;
    AddedToken token;
    token.id = *found;
    token.content = name;
    token.special = true;
    spec.added_tokens.push_back(std::move(token));
  }
  const auto cls = id_of("[CLS]"), sep = id_of("[SEP]");
  DS_CHECK(cls && sep && id_of(model.unk_token), Code::kCorrupt, what,
           " has no line \"[CLS]\", \"[SEP]\" or \"[UNK]\"; it is not a vocabulary of BERT");
  spec.model = std::move(model);
  spec.normalizer = {
      {"type", "BertNormalizer"},
      {"clean_text", true},
      {"handle_chinese_chars", options.ideographs},
      {"strip_accents", options.strip_accents ? Json(*options.strip_accents) : Json(nullptr)},
      {"lowercase", options.lowercase}};
  spec.pre_tokenizer = {{"type", "BertPreTokenizer"}};
  const auto piece = [](const char* kind, const char* name, int type) {
    return Json{{kind, {{"id", name}, {"type_id", type}}}};
  };
  const auto special = [](const char* name, int32_t token_id) {
    return Json{{"id", name}, {"ids", Json::array({token_id})}, {"tokens", Json::array({name})}};
  };
  const Json text_a = piece("Sequence", "A", 0), text_b = piece("Sequence", "B", 1);
  const Json begin = piece("SpecialToken", "[CLS]", 0);
  const Json end_a = piece("SpecialToken", "[SEP]", 0), end_b = piece("SpecialToken", "[SEP]", 1);
  spec.post_processor = {
      {"type", "TemplateProcessing"},
      {"single", Json::array({begin, text_a, end_a})},
      {"pair", Json::array({begin, text_a, end_a, text_b, end_b})},
      {"special_tokens", {{"[CLS]", special("[CLS]", *cls)}, {"[SEP]", special("[SEP]", *sep)}}}};
  spec.decoder = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  spec.eos_token = load_options.eos_token;
  return std::make_shared<PipelineTokenizer>(std::move(spec), what);
}

}  // namespace ds
