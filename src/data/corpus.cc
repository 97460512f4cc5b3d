#include "data/corpus.h"

#include <functional>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "data/indexed_dataset.h"
#include "data/text_reader.h"

namespace ds {
namespace {

constexpr int64_t kBatchLines = 512;
constexpr size_t kBatchBytes = size_t{32} << 20;

using Sequence = std::vector<int32_t>;
using Document = std::vector<Sequence>;
using Sink = std::function<void(const Document&)>;

bool is_json_lines(const std::filesystem::path& path) {
  const std::string extension = to_lower_ascii(path.extension().string());
  return extension == ".jsonl" || extension == ".json";
}

class Encoder {
 public:
  Encoder(const std::filesystem::path& path, const Tokenizer& tokenizer,
          const CorpusOptions& options)
      : path_(path), tokenizer_(tokenizer), options_(options) {
    encode_options_.parse_special_tokens = options.parse_special_tokens;
    if (!options.append_eod) return;
    const auto eos = tokenizer.eos_id();
    DS_CHECK(eos, Code::kInvalidArgument,
             "append_eod needs an end-of-document token, and the "
             "tokenizer has none; choose another tokenizer or leave append_eod out");
    eod_ = *eos;
  }

  // The tokens of a file of running text.
  Sequence running_text() const {
    Sequence tokens;
    TextBlockReader reader(path_);
    const bool blank_is_added = adds_blank();
    bool first = true;
    for (std::string block = reader.next(); !block.empty(); block = reader.next()) {
      // Blocks are cut before a blank, which such a tokenizer adds itself.
      const bool drop = !first && blank_is_added && block.starts_with(' ');
      tokenizer_.append_encoded(std::string_view(block).substr(drop ? 1 : 0), encode_options_,
                                tokens);
      first = false;
    }
    if (!tokens.empty() && eod_ >= 0) tokens.push_back(eod_);
    return tokens;
  }

  // Every document of a file of JSON lines that has tokens, in order.
  void json_lines(const Sink& sink) const {
    LineReader reader(path_);
    std::vector<Line> lines;
    std::vector<Document> documents;
    bool more = true;
    while (more) {
      lines.clear();
      size_t bytes = 0;
      while (static_cast<int64_t>(lines.size()) < kBatchLines && bytes < kBatchBytes) {
        auto text = reader.next();
        if (!text) {
          more = false;
          break;
        }
        bytes += text->size();
        lines.push_back({std::move(*text), reader.line_number()});
      }
      documents.assign(lines.size(), {});
      const auto encode = [&](int64_t i) {
        documents[static_cast<size_t>(i)] = encode_line(lines[static_cast<size_t>(i)]);
      };
      if (options_.pool != nullptr) {
        options_.pool->run(static_cast<int64_t>(lines.size()), encode);
      } else {
        for (size_t i = 0; i < lines.size(); ++i) encode(static_cast<int64_t>(i));
      }
      for (const Document& document : documents) {
        if (!document.empty()) sink(document);
      }
    }
  }

 private:
  struct Line {
    std::string text;
    int64_t number;
  };

  // Does a text of its own become the same tokens as behind a blank?
  bool adds_blank() const {
    try {
      Sequence apart = tokenizer_.encode("x");
      tokenizer_.append_encoded("a", {}, apart);
      return apart == tokenizer_.encode("x a");
    } catch (const Error&) {
      return false;  // no tokens for these letters
    }
  }

  Document encode_line(const Line& line) const {
    if (line.text.find_first_not_of(" \t") == std::string::npos) return {};
    const std::string where = str_cat(printable(path_.string(), 300), ":", line.number);
    const Json json = parse_json(line.text, where, Code::kCorrupt);
    DS_CHECK(json.is_object(), Code::kCorrupt, where, ": a line must be a JSON object, not ",
             json.type_name());
    const auto field = json.find(options_.json_key);
    DS_CHECK(field != json.end(), Code::kCorrupt, where, ": there is no key \"",
             printable(options_.json_key), "\"; name the key that holds the text");
    Document document;
    const auto add = [&](const Json& text) {
      DS_CHECK(text.is_string(), Code::kCorrupt, where, ": \"", printable(options_.json_key),
               "\" must be a string or a list of strings, not ", text.type_name());
      Sequence tokens = tokenizer_.encode(text.get_ref<const std::string&>(), encode_options_);
      if (!tokens.empty()) document.push_back(std::move(tokens));
    };
    if (field->is_array()) {
      for (const Json& text : *field) add(text);
    } else {
      add(*field);
    }
    if (!document.empty() && eod_ >= 0) document.back().push_back(eod_);
    return document;
  }

  std::filesystem::path path_;
  const Tokenizer& tokenizer_;
  const CorpusOptions& options_;
  EncodeOptions encode_options_;
  int32_t eod_ = -1;
};

}  // namespace

CorpusStats build_indexed_dataset(const std::filesystem::path& text_path,
                                  const Tokenizer& tokenizer,
                                  const std::filesystem::path& out_prefix,
                                  const CorpusOptions& options) {
  const Encoder encoder(text_path, tokenizer, options);
  IndexedDatasetWriter writer(out_prefix, token_type_for_vocab(tokenizer.vocab_size()));
  const auto add = [&](const Document& document) {
    for (const Sequence& tokens : document) writer.add_sequence(std::span<const int32_t>(tokens));
    writer.end_document();
  };
  if (is_json_lines(text_path)) {
    encoder.json_lines(add);
  } else if (Document document{encoder.running_text()}; !document[0].empty()) {
    add(document);
  }
  DS_CHECK(writer.token_count() > 0, Code::kInvalidArgument, printable(text_path.string(), 300),
           " holds no text");
  const CorpusStats stats{writer.document_count(), writer.sequence_count(), writer.token_count()};
  writer.finish();
  return stats;
}

TokenSourcePtr load_text_source(const std::filesystem::path& text_path, const Tokenizer& tokenizer,
                                int64_t sequence_length, const CorpusOptions& options) {
  const Encoder encoder(text_path, tokenizer, options);
  TokenSourcePtr source;
  if (is_json_lines(text_path)) {
    std::vector<int32_t> tokens;
    std::vector<int64_t> ends;
    encoder.json_lines([&](const Document& document) {
      for (const Sequence& sequence : document) {
        tokens.insert(tokens.end(), sequence.begin(), sequence.end());
        ends.push_back(static_cast<int64_t>(tokens.size()));
      }
    });
    source = std::make_shared<MemoryTokens>(std::move(tokens), std::move(ends), text_path.string());
  } else {
    source = cut_running_tokens(encoder.running_text(), sequence_length, text_path.string());
  }
  DS_CHECK(source->sequence_count() > 0, Code::kInvalidArgument, printable(text_path.string(), 300),
           " holds no text");
  return source;
}

TokenSourcePtr open_token_source(const std::filesystem::path& data, TokenizerPtr tokenizer,
                                 int64_t sequence_length, const CorpusOptions& options) {
  std::filesystem::path prefix = data;
  if (data.extension() == ".bin" || data.extension() == ".idx") prefix.replace_extension();
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(data, ignored);
  if (indexed_dataset_exists(prefix) && (prefix != data || !is_file)) {
    return std::make_shared<IndexedDataset>(prefix);
  }
  DS_CHECK(is_file && prefix == data, Code::kNotFound, "there is no data at ",
           printable(data.string(), 300),
           ": neither a text file nor an indexed data set (both PREFIX.bin and PREFIX.idx)");
  if (tokenizer == nullptr) tokenizer = make_byte_tokenizer();
  return load_text_source(data, *tokenizer, sequence_length, options);
}

}  // namespace ds
