#include "data/sentence_corpus.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_fields.h"
#include "data/indexed_dataset.h"
#include "data/text_reader.h"

namespace ds {
namespace {

class Builder {
 public:
  Builder(std::string_view what, const Tokenizer& tokenizer)
      : what_(printable(what, 300)), tokenizer_(tokenizer) {}

  void add_sentence(std::string_view text) {
    tokenizer_.append_encoded(text, {.parse_special_tokens = false}, tokens_);
    const auto end = static_cast<int64_t>(tokens_.size());
    if (end > (ends_.empty() ? 0 : ends_.back())) ends_.push_back(end);
  }

  void end_document() {
    const auto end = static_cast<int64_t>(ends_.size());
    if (end > documents_.back()) documents_.push_back(end);
  }

  void add_text_line(std::string_view line) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      end_document();
    } else {
      add_sentence(line);
    }
  }

  void add_json_line(std::string_view line, int64_t number) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    const std::string where = str_cat(what_, ":", number);
    const Json json = parse_json(line, where, Code::kCorrupt);
    const Json& text = need_field(json, "text", where);
    if (text.is_array()) {
      for (const Json& sentence : text) add_sentence(as_text(sentence, where + ": \"text\"[...]"));
    } else {
      std::string_view rest = text.is_string()
                                  ? std::string_view(text.get_ref<const std::string&>())
                                  : std::string_view();
      DS_CHECK(text.is_string(), Code::kCorrupt, where,
               ": \"text\" must be a string or a list of strings, not ", text.type_name());
      while (!rest.empty()) {
        const size_t end = std::min(rest.find('\n'), rest.size());
        add_sentence(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
    }
    end_document();
  }

  SentenceCorpus finish() {
    end_document();
    SentenceCorpus corpus;
    corpus.documents = std::move(documents_);
    corpus.sentences = std::make_shared<MemoryTokens>(std::move(tokens_), std::move(ends_), what_);
    DS_CHECK(corpus.document_count() > 0, Code::kInvalidArgument, what_, " holds no text");
    return corpus;
  }

 private:
  std::string what_;
  const Tokenizer& tokenizer_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> ends_;
  std::vector<int64_t> documents_{0};
};

template <class Fn>
void for_each_line(std::string_view text, const Fn& fn) {
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    fn(text.substr(0, end), ++number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

SentenceCorpus from_indexed(const std::filesystem::path& prefix) {
  auto source = std::make_shared<const IndexedDataset>(prefix);
  SentenceCorpus corpus;
  for (int64_t d = 0; d <= source->document_count(); ++d) {
    corpus.documents.push_back(source->document_begin(d));
  }
  corpus.sentences = std::move(source);
  return corpus;
}

}  // namespace

SentenceCorpus parse_sentence_text(std::string_view text, std::string_view what,
                                   const Tokenizer& tokenizer) {
  Builder builder(what, tokenizer);
  for_each_line(text, [&](std::string_view line, int64_t) { builder.add_text_line(line); });
  return builder.finish();
}

SentenceCorpus parse_sentence_json_lines(std::string_view json_lines, std::string_view what,
                                         const Tokenizer& tokenizer) {
  Builder builder(what, tokenizer);
  for_each_line(json_lines, [&](std::string_view line, int64_t number) {
    builder.add_json_line(line, number);
  });
  return builder.finish();
}

SentenceCorpus open_sentence_corpus(const std::filesystem::path& path,
                                    const TokenizerPtr& tokenizer) {
  std::filesystem::path prefix = path;
  if (path.extension() == ".bin" || path.extension() == ".idx") prefix.replace_extension();
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(path, ignored);
  if (indexed_dataset_exists(prefix) && (prefix != path || !is_file)) return from_indexed(prefix);
  DS_CHECK(is_file && prefix == path, Code::kNotFound, "there is no data at ",
           printable(path.string(), 300),
           ": neither a text file nor an indexed data set (both PREFIX.bin and PREFIX.idx)");
  DS_CHECK(tokenizer != nullptr, Code::kInvalidArgument, printable(path.string(), 300),
           ": sentences of text need a tokenizer");
  const std::string extension = to_lower_ascii(path.extension().string());
  const bool json = extension == ".jsonl" || extension == ".json";
  Builder builder(path.string(), *tokenizer);
  LineReader reader(path);
  while (const auto line = reader.next()) {
    if (json) {
      builder.add_json_line(*line, reader.line_number());
    } else {
      builder.add_text_line(*line);
    }
  }
  return builder.finish();
}

}  // namespace ds
