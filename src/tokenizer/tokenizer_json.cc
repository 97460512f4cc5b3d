// Reads and writes tokenizer.json (layout version 1.0) and reads GPT-2's vocab.json + merges.txt.
#include "base/file.h"
#include "base/json_fields.h"
#include "base/log.h"
#include "tokenizer/pipeline_tokenizer.h"

namespace ds {
namespace {

constexpr int64_t kMaxId = INT32_MAX - 1;

Vocabulary read_vocab(const Json& json, std::string_view what) {
  DS_CHECK(json.is_object(), Code::kCorrupt, what, ": the vocabulary must be an object, not ",
           json.type_name());
  Vocabulary vocab;
  vocab.reserve(json.size());
  for (const auto& [token, token_id] : json.items()) {
    // The message is built only for a bad entry: there are many good ones.
    if (!token_id.is_number_unsigned() || token_id.get<uint64_t>() > uint64_t{kMaxId}) {
      as_integer(token_id, 0, kMaxId, str_cat(what, ": id of \"", printable(token), "\""));
    }
    vocab.emplace_back(token, static_cast<int32_t>(token_id.get<int64_t>()));
  }
  return vocab;
}

std::pair<std::string, std::string> split_merge(const std::string& text, size_t rank,
                                                std::string_view what) {
  const size_t space = text.find(' ');
  DS_CHECK(space != std::string::npos && space > 0 && space + 1 < text.size() &&
               text.find(' ', space + 1) == std::string::npos,
           Code::kCorrupt, what, ": merge ", rank, " is \"", printable(text),
           "\", not two tokens with a space between");
  return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<std::pair<std::string, std::string>> read_merges(const Json& json,
                                                             std::string_view what) {
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(json.size());
  for (const Json& merge : json) {
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;
      merges.push_back(split_merge(text, merges.size(), what));
      continue;
    }
    DS_CHECK(merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(),
             Code::kCorrupt, what, ": merge ", merges.size(),
             " is neither a string nor a pair of strings");
    merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  return merges;
}

BpeModelSpec read_bpe(const Json& json, std::string_view what) {
  if (const Json* dropout = find_field(json, "dropout", what)) {
    DS_CHECK(dropout->is_number() && dropout->get<double>() == 0.0, Code::kUnsupported, what,
             ".dropout: random merges are not supported; set it to null");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* const value = find_field(json, affix, what);
    DS_CHECK(value == nullptr || as_text(*value, what).empty(), Code::kUnsupported, what, ".",
             affix, " is not supported; only tokenizers without it can be read");
  }
  BpeModelSpec spec;
  if (const Json* unk = find_field(json, "unk_token", what)) {
    spec.unk_token = as_text(*unk, str_cat(what, ".unk_token"));
  }
  spec.fuse_unk = bool_field(json, "fuse_unk", false, what);
  spec.byte_fallback = bool_field(json, "byte_fallback", false, what);
  spec.ignore_merges = bool_field(json, "ignore_merges", false, what);
  spec.vocab = read_vocab(need_field(json, "vocab", what), str_cat(what, ".vocab"));
  spec.merges = read_merges(array_field(json, "merges", what), str_cat(what, ".merges"));
  return spec;
}

WordPieceModelSpec read_word_piece(const Json& json, std::string_view what) {
  WordPieceModelSpec spec;
  if (const Json* unk = find_field(json, "unk_token", what)) {
    spec.unk_token = as_text(*unk, str_cat(what, ".unk_token"));
  }
  if (const Json* prefix = find_field(json, "continuing_subword_prefix", what)) {
    spec.continuing_subword_prefix = as_text(*prefix, str_cat(what, ".continuing_subword_prefix"));
  }
  if (const Json* most = find_field(json, "max_input_chars_per_word", what)) {
    spec.max_input_chars_per_word =
        as_integer(*most, 0, INT32_MAX, str_cat(what, ".max_input_chars_per_word"));
  }
  spec.vocab = read_vocab(need_field(json, "vocab", what), str_cat(what, ".vocab"));
  return spec;
}

TextModelSpec read_model(const Json& json, std::string_view what) {
  // Old files have no type; the model is then known by its parts.
  const Json* const type = find_field(json, "type", what);
  const std::string name = type != nullptr ? as_text(*type, str_cat(what, ".type"))
                           : find_field(json, "merges", what) != nullptr ? "BPE"
                           : find_field(json, "max_input_chars_per_word", what) != nullptr
                               ? "WordPiece"
                               : "without a type";
  if (name == "BPE") return read_bpe(json, what);
  if (name == "WordPiece") return read_word_piece(json, what);
  fail(Code::kUnsupported, what, ": a model \"", printable(name),
       "\" is not supported; known are BPE and WordPiece");
}

std::vector<AddedToken> read_added_tokens(const Json& document, std::string_view what) {
  std::vector<AddedToken> tokens;
  if (find_field(document, "added_tokens", what) == nullptr) return tokens;
  for (const Json& json : array_field(document, "added_tokens", what)) {
    const std::string where = str_cat(what, ": added_tokens[", tokens.size(), "]");
    AddedToken token;
    token.id =
        static_cast<int32_t>(as_integer(need_field(json, "id", where), 0, kMaxId, where + ".id"));
    token.content = text_field(json, "content", where);
    token.special = bool_field(json, "special", false, where);
    token.lstrip = bool_field(json, "lstrip", false, where);
    token.rstrip = bool_field(json, "rstrip", false, where);
    token.single_word = bool_field(json, "single_word", false, where);
    token.normalized = bool_field(json, "normalized", !token.special, where);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

Json stage(const Json& document, const char* name, std::string_view what) {
  const Json* const found = find_field(document, name, what);
  return found != nullptr ? *found : Json(nullptr);
}

struct FolderConfig {
  std::string eos_token;
  BertVocabOptions bert;
};

// tokenizer_config.json: "eos_token" is a string, or an object with its content.
FolderConfig read_config(const std::filesystem::path& path) {
  const std::string what = path.string();
  const Json json = parse_json(read_text_file(path, kMostTokenizerBytes), what, Code::kCorrupt);
  FolderConfig config;
  if (const Json* eos = find_field(json, "eos_token", what)) {
    config.eos_token = eos->is_object() ? text_field(*eos, "content", what) : as_text(*eos, what);
  }
  config.bert.lowercase = bool_field(json, "do_lower_case", true, what);
  config.bert.ideographs = bool_field(json, "tokenize_chinese_chars", true, what);
  if (find_field(json, "strip_accents", what) != nullptr) {
    config.bert.strip_accents = bool_field(json, "strip_accents", true, what);
  }
  return config;
}

}  // namespace

TokenizerPtr parse_tokenizer_json(std::string_view json, std::string_view what,
                                  const TokenizerLoadOptions& options) {
  const Json document = parse_json(json, what, Code::kCorrupt);
  if (const Json* version = find_field(document, "version", what)) {
    // Compared as text: comparing JSON values with literals may not run out of memory.
    DS_CHECK(version->is_string() && version->get_ref<const std::string&>() == "1.0",
             Code::kUnsupported, what, ": tokenizer.json version ", printable(dump_json(*version)),
             " is not supported; known is \"1.0\"");
  }
  PipelineTokenizerSpec spec;
  spec.model = read_model(need_field(document, "model", what), str_cat(what, ": model"));
  spec.added_tokens = read_added_tokens(document, what);
  spec.normalizer = stage(document, "normalizer", what);
  spec.pre_tokenizer = stage(document, "pre_tokenizer", what);
  spec.post_processor = stage(document, "post_processor", what);
  spec.decoder = stage(document, "decoder", what);
  spec.truncation = stage(document, "truncation", what);
  spec.padding = stage(document, "padding", what);
  spec.eos_token = options.eos_token;
  // Texts are cut to length by data sets and callers, who know which length that is.
  const auto not_applied = [&](const char* name, const Json& settings) {
    if (settings.is_null()) return;
    log_warning("data", what, ": \"", name,
                "\" is not applied: texts become as many tokens as they "
                "have, whatever it says (",
                printable(dump_json(settings), 200), ")");
  };
  not_applied("truncation", spec.truncation);
  not_applied("padding", spec.padding);
  return std::make_shared<PipelineTokenizer>(std::move(spec), what);
}

TokenizerPtr load_tokenizer(const std::filesystem::path& path,
                            const TokenizerLoadOptions& options) {
  std::error_code ignored;
  const auto exists = [&](const std::filesystem::path& file) {
    return std::filesystem::exists(file, ignored);
  };
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const std::filesystem::path folder = is_folder ? path : path.parent_path();
  FolderConfig config;
  if (exists(folder / "tokenizer_config.json")) {
    config = read_config(folder / "tokenizer_config.json");
  }
  TokenizerLoadOptions chosen = options;
  if (chosen.eos_token.empty()) chosen.eos_token = config.eos_token;
  std::filesystem::path file = is_folder ? path / "tokenizer.json" : path;
  if (is_folder && !exists(file)) {
    if (exists(path / "vocab.txt")) {
      file = path / "vocab.txt";
    } else if (exists(path / "vocab.json") && exists(path / "merges.txt")) {
      return load_gpt2_tokenizer(path / "vocab.json", path / "merges.txt", chosen);
    }
  }
  if (file.extension() == ".txt") {
    return parse_bert_vocab(read_text_file(file, kMostTokenizerBytes), file.string(), config.bert,
                            chosen);
  }
  return parse_tokenizer_json(read_text_file(file, kMostTokenizerBytes), file.string(), chosen);
}

TokenizerPtr load_gpt2_tokenizer(const std::filesystem::path& vocab_json,
                                 const std::filesystem::path& merges_txt,
                                 const TokenizerLoadOptions& options) {
  BpeModelSpec model;
  const std::string vocab_name = vocab_json.string(), merges_name = merges_txt.string();
  model.vocab = read_vocab(
      parse_json(read_text_file(vocab_json, kMostTokenizerBytes), vocab_name, Code::kCorrupt),
      vocab_name);
  const std::string merges = read_text_file(merges_txt, kMostTokenizerBytes);
  size_t line_number = 0;
  for (size_t begin = 0; begin < merges.size(); ++line_number) {
    const size_t end = std::min(merges.find('\n', begin), merges.size());
    std::string line = merges.substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || (line_number == 0 && line.starts_with("#version"))) continue;
    model.merges.push_back(split_merge(line, model.merges.size(), merges_name));
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  PipelineTokenizerSpec spec;
  spec.model = std::move(model);
  spec.pre_tokenizer = byte_level;
  spec.decoder = byte_level;
  spec.eos_token = options.eos_token;
  return std::make_shared<PipelineTokenizer>(std::move(spec), vocab_name);
}

std::string PipelineTokenizer::to_json() const {
  Json added = Json::array();
  for (const AddedToken& token : added_tokens_) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  const Json document = {{"version", "1.0"},
                         {"truncation", stages_.at("truncation")},
                         {"padding", stages_.at("padding")},
                         {"added_tokens", std::move(added)},
                         {"normalizer", stages_.at("normalizer")},
                         {"pre_tokenizer", stages_.at("pre_tokenizer")},
                         {"post_processor", stages_.at("post_processor")},
                         {"decoder", stages_.at("decoder")},
                         {"model", model_->to_json()}};
  return dump_json(document, 2);
}

}  // namespace ds
